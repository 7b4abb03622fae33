// `contextile-labs table`, end to end.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// Small enough for a test: seconds of planning become milliseconds.
std::vector<std::string> small_batches(const std::string& tokens) {
  return {"--tokens",   tokens,     "--dataset",  "longdatacollections",
          "--cluster",  "p4de:2x4", "--heads",    "4",
          "--kv-heads", "2",        "--head-dim", "64"};
}
const std::vector<std::string> kSmallTables = small_batches("16K");

class TableCommand : public ProgramTest {
 protected:
  [[nodiscard]] json small_table(const std::string& name,
                                 const std::vector<std::string>& more = {"--batches", "1"}) const {
    const Outcome outcome =
        contextile(joined(joined({"table", name, "--json"}, kSmallTables), more));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out);
  }
};

TEST_F(TableCommand, ListsEveryTableWithItsSource) {
  const Outcome text = contextile({"table", "--list"});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  const json listed = json::parse(contextile({"table", "--list", "--json"}).out);
  EXPECT_EQ(listed["command"], "table");
  std::set<std::string> names;
  for (const json& table : listed["tables"]) {
    names.insert(table["name"]);
    EXPECT_THAT(text.out, HasSubstr(table["name"].get<std::string>()));
    EXPECT_THAT(text.out, HasSubstr(table["source"].get<std::string>()));
  }
  for (const char* name :
       {"dcp-fig7", "dcp-fig13", "dcp-fig14", "dcp-fig17", "dcp-fig18", "dcp-fig19", "dcp-fig20",
        "fcp-fig2", "fcp-fig9", "fcp-fig10", "fcp-fig11", "fcp-fig12", "fcp-table2", "sweep"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST_F(TableCommand, CountsTheRedundantTransfersOfTheRing) {
  const Outcome outcome = contextile({"table", "dcp-fig7", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json document = json::parse(outcome.out);
  EXPECT_EQ(document["rows"][0]["strategy"], "ring");
  EXPECT_EQ(document["rows"][0]["transfers"], 48);
  EXPECT_EQ(document["rows"][0]["redundant_transfers"], 38);
  EXPECT_EQ(document["findings"][0]["agrees"], true);
  for (const json& row : document["rows"]) {
    if (row["strategy"] == "magi" || row["strategy"] == "dcp:head_groups=1") {
      EXPECT_EQ(row["redundant_bytes"], 0) << row;
    }
  }
}

TEST_F(TableCommand, ShowsTheClaimBesideWhatWasFoundAndWhatDiffers) {
  const Outcome outcome = contextile({"table", "dcp-fig7"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* words : {"DCP (SOSP 2025), Fig. 7", "paper     38 of", "agrees    38 of 48",
                            "what differs", "blocks of"}) {
    EXPECT_THAT(outcome.out, HasSubstr(words));
  }
}

TEST_F(TableCommand, GivesNoVerdictOnAnotherExperimentThanThePapers) {
  const Outcome outcome = contextile({"table", "dcp-fig7", "--tokens", "1600"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("here      38 of 48"));
  EXPECT_THAT(outcome.out, HasSubstr("--tokens: no verdicts"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("agrees")));
  const Outcome document = contextile({"table", "dcp-fig7", "--tokens", "1600", "--json"});
  EXPECT_EQ(json::parse(document.out)["changes"], json::array({"--tokens"}));
}

TEST_F(TableCommand, GivesNoVerdictOnFewerThanTwentyBatches) {
  const std::vector<std::string> command = {"table", "fcp-fig2", "--batches"};
  const Outcome few = contextile(joined(command, {"19"}));
  EXPECT_EQ(few.exit_code, 0) << few.err;
  EXPECT_THAT(few.out, HasSubstr("--batches below 20: no verdicts"));
  EXPECT_THAT(contextile(joined(command, {"20"})).out, Not(HasSubstr("no verdicts")));
}

TEST_F(TableCommand, MovesLessThanARingAtEveryBlockSize) {
  const json document = small_table("dcp-fig17");
  double ring = 0;
  int compared = 0;
  for (const json& row : document["rows"]) {
    const std::string strategy = row["strategy"];
    if (strategy == "ring") ring = row["device_bytes"];
    if (strategy != "dcp") continue;
    EXPECT_LT(row["device_bytes"], ring) << row;
    ++compared;
  }
  EXPECT_EQ(compared, 16);  // four masks, four block sizes
}

TEST_F(TableCommand, SendsNoMoreAcrossNodesWithRelays) {
  const json document = small_table("dcp-fig17");
  json direct;
  int compared = 0;
  for (const json& row : document["rows"]) {
    if (row["strategy"] == "dcp" && row["block_tokens"] == 1024) direct = row;
    if (row["strategy"] != "dcp:relays=on") continue;
    EXPECT_EQ(row["mask"], direct["mask"]);
    EXPECT_LE(row["inter_bytes"], direct["inter_bytes"]);
    EXPECT_EQ(row["device_bytes"], direct["device_bytes"]);
    ++compared;
  }
  EXPECT_EQ(compared, 4);
}

TEST_F(TableCommand, MovesLessTheMoreImbalanceIsAllowed) {
  const json document = small_table("dcp-fig20", {"--block-size", "512", "--batches", "2"});
  double tight = 0;
  double loose = 0;
  for (const json& row : document["rows"]) {
    if (row["eps_node"] == "0.02") tight += row["device_bytes"].get<double>();
    if (row["eps_node"] == "0.8") loose += row["device_bytes"].get<double>();
  }
  EXPECT_GT(loose, 0);
  EXPECT_LT(loose, tight);
  ASSERT_EQ(document["findings"].size(), 2U);
  for (const json& finding : document["findings"]) {
    EXPECT_THAT(finding["claim"].get<std::string>(), HasSubstr("falls as eps grows"));
    EXPECT_THAT(finding["ours"].get<std::string>(), HasSubstr(" of 4, from eps 0.02 to 0.8: "));
    EXPECT_THAT(finding["criterion"].get<std::string>(), HasSubstr("2%"));
  }
}

TEST_F(TableCommand, DecidesOnGrowthForEveryMaskByItself) {
  const json document = small_table("dcp-fig17");
  std::map<std::string, std::map<std::int64_t, double>> bytes;
  for (const json& row : document["rows"]) {
    if (row["strategy"] == "dcp") bytes[row["mask"]][row["block_tokens"]] = row["device_bytes"];
  }
  int slightly = 0;
  std::string ours;
  for (const char* mask : {"causal", "lambda", "blockwise", "shared"}) {
    const double growth = bytes.at(mask).at(4096) / bytes.at(mask).at(512) - 1;
    if (growth >= -0.02 && growth <= 0.5) ++slightly;
    ours += fmt::format("{}LDC {} {:+.0f}%", ours.empty() ? "" : ", ", mask, 100 * growth);
  }
  const json& finding = document["findings"][2];
  EXPECT_EQ(finding["claim"], "per-device volume grows slightly with the block size");
  EXPECT_EQ(finding["ours"], fmt::format("{} of 4 from 512 to 4096: {}", slightly, ours));
  EXPECT_EQ(finding["agrees"], slightly == 4);
  EXPECT_THAT(finding["criterion"].get<std::string>(), HasSubstr("-2% to 50%"));
}

TEST_F(TableCommand, MovesLessUnderSparserMasks) {
  // The first batch alone moves little under any mask: its documents are short.
  const json document = small_table("dcp-fig19", {"--block-size", "256", "--batches", "4"});
  double sparsest = 1;
  double sparsest_bytes = 0;
  double causal_bytes = 0;
  for (const json& row : document["rows"]) {
    EXPECT_GT(row["sparsity"], 0);
    EXPECT_LE(row["sparsity"], 1);
    if (row["mask"] == "causal") causal_bytes = row["device_bytes"];
    if (row["sparsity"] >= sparsest) continue;
    sparsest = row["sparsity"];
    sparsest_bytes = row["device_bytes"];
  }
  EXPECT_LT(sparsest_bytes, causal_bytes);
}

TEST_F(TableCommand, TimesPlanningForEveryBlockSizeAndMask) {
  const json document = small_table("dcp-fig18");
  EXPECT_EQ(document["rows"].size(), 16U);
  std::map<std::string, double> by_mask_s;
  for (const json& row : document["rows"]) {
    EXPECT_GT(row["planning_s"], 0);
    EXPECT_GT(row["tiles"], 0);
    EXPECT_LE(row["planning_p10_s"], row["planning_p90_s"]);
    by_mask_s[row["mask"]] += row["planning_s"].get<double>();
  }
  double most = 0;
  for (const char* mask : {"lambda", "blockwise", "shared"}) {
    most = std::max(most, by_mask_s.at(mask) / by_mask_s.at("causal"));
  }
  EXPECT_EQ(document["findings"][1]["agrees"], most <= 0.5) << "much less is at most half";
}

TEST_F(TableCommand, TimesTheMethodBesideItsBaselines) {
  const json document = small_table("dcp-fig13");
  EXPECT_EQ(document["rows"].size(), 4U * 5);
  for (const json& row : document["rows"]) {
    if (!row.contains("total_s")) continue;  // inner_ring=8 needs nodes of 8 devices
    EXPECT_NEAR(row["total_s"].get<double>(),
                row["forward_s"].get<double>() + row["backward_s"].get<double>(), 1e-9)
        << row;
    if (row["strategy"] == "dcp") {
      EXPECT_DOUBLE_EQ(row["gain"].get<double>(), 1);
    }
  }
  EXPECT_EQ(document["findings"].size(), 6U);
  EXPECT_EQ(small_table("dcp-fig14")["rows"].size(), 3U * 4 * 2);
}

TEST_F(TableCommand, PadsLoongTrainsSequencesToTheLongest) {
  // At scale 0.5 the longest of 21 sequences has a fifth of the tokens: padded, four times as many.
  const Outcome outcome =
      contextile(joined({"table", "dcp-fig13", "--json", "--batches", "1"}, small_batches("32K")));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json document = json::parse(outcome.out);
  std::map<double, double> zigzag_s;
  for (const json& row : document["rows"]) {
    const double scale = row["scale"];
    if (row["strategy"] == "zigzag") zigzag_s[scale] = row["total_s"];
    if (row["strategy"].get<std::string>().starts_with("double_ring") && scale == 0.5) {
      EXPECT_GT(row["total_s"].get<double>(), 0.6 * zigzag_s.at(scale)) << row;  // packed: 0.2x
    }
  }
}

TEST_F(TableCommand, NeedsEveryScaleWithinTheClaim) {
  const json document = small_table("dcp-fig13");
  bool within = true;
  std::vector<std::string> gains;
  for (const double scale : {0.5, 1.0, 2.0, 4.0}) {
    double gain = std::numeric_limits<double>::infinity();
    for (const json& row : document["rows"]) {
      if (row["scale"] != scale || row["strategy"] == "dcp" || !row.contains("gain")) continue;
      gain = std::min(gain, row["gain"].get<double>());
    }
    within = within && gain >= 1.19 && gain <= 2.45;
    // One batch has no spread.
    gains.push_back(fmt::format("{0:.2f}x ({0:.2f}x to {0:.2f}x) at scale {1}", gain, scale));
  }
  EXPECT_EQ(document["findings"][0]["ours"], fmt::format("{}", fmt::join(gains, ", ")));
  EXPECT_EQ(document["findings"][0]["agrees"], within);
}

TEST_F(TableCommand, LeavesOutDocumentsThatAreTooLong) {
  // 4K tokens hold no document of LongAlign.
  expect_bad_input(contextile({"table", "dcp-fig17", "--dataset", "longalign", "--tokens", "4K"}),
                   {"expected documents of at most 4096 tokens"});
}

// The options that tables need in place of kSmallTables: those that they do not follow are refused.
std::vector<std::string> small_options(const std::string& name) {
  const std::vector<std::string> nodes = {"--tokens", "8K",        "--batches",
                                          "1",        "--cluster", "p4de:2x8"};
  const std::vector<std::string> step = {"--tokens", "8K", "--batches", "1"};
  const std::vector<std::string> node = {"--tokens", "64K",       "--batches",
                                         "1",        "--cluster", "dgx-h100:1x8"};
  const std::map<std::string, std::vector<std::string>> other = {
      {"dcp-fig1", nodes},
      {"dcp-fig5", {"--tokens", "4K"}},
      {"dcp-fig7", {}},
      {"dcp-fig15", nodes},
      {"dcp-fig22", nodes},
      {"fcp-fig2", {"--batches", "1"}},
      {"fcp-fig12", {"--batches", "1", "--dataset", "longalign"}},
      {"fcp-fig14", node},
      {"fcp-lengths", node},
      {"fcp-sec35", {"--tokens", "512K", "--cluster", "p4de:2x8"}},
      {"fcp-shards", {"--tokens", "64K", "--batches", "1"}},
      {"fcp-table1", {}},
      {"distca-fig3", step},
      {"distca-fig4", {"--batches", "1"}},
      {"distca-fig5", {}},
      {"distca-fig6", step},
      {"distca-fig11", step},
      {"distca-fig12", {"--tokens", "32K", "--batches", "1"}},
      {"distca-appa", {}},
      {"inference-ttft", {}},
      {"inference-query", {}},
      {"inference-helix", {}},
      {"inference-modes", {}},
      {"megatron-example", {}},
      {"sweep",
       {"--tokens", "4K", "--dataset", "longalign", "--cluster", "p4de:2x4", "--heads", "4",
        "--kv-heads", "2", "--head-dim", "64"}}};
  const auto found = other.find(name);
  return found == other.end() ? joined(kSmallTables, {"--batches", "1"}) : found->second;
}

// They take many seconds at any size: slow_tables_test makes them once, without the program.
// distca-fig10 is the code of distca-fig9 with pipelines, for most of a minute.
const std::set<std::string> kSlow = {"fcp-fig9",  "fcp-fig10",   "fcp-fig11",
                                     "fcp-fig13", "distca-fig9", "distca-fig10"};

std::size_t characters(const std::string& text) {  // of UTF-8
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// At most 80 columns of finite numbers.
void expect_readable(const Outcome& text) {
  ASSERT_EQ(text.exit_code, 0) << text.err;
  std::istringstream lines(text.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(characters(line), 80U) << line;
  EXPECT_THAT(text.out, testing::Not(testing::ContainsRegex("[ -](inf|nan)([x%, ]|\n)")));
}

// Each plot names columns that some row has, and numbers to draw.
void expect_drawable(const json& document) {
  EXPECT_FALSE(document["plots"].empty());
  std::set<std::string> keys;
  std::set<std::string> numbers;
  for (const json& row : document["rows"]) {
    for (const auto& [key, value] : row.items()) {
      keys.insert(key);
      if (value.is_number()) numbers.insert(key);
    }
  }
  for (const json& plot : document["plots"]) {
    EXPECT_TRUE(keys.contains(plot["x"])) << plot;
    EXPECT_FALSE(plot["y"].empty()) << plot;
    for (const json& key : plot["y"]) EXPECT_TRUE(numbers.contains(key)) << plot;
    for (const char* labels : {"series", "panels"}) {
      for (const json& key : plot[labels]) EXPECT_TRUE(keys.contains(key)) << plot;
    }
  }
}

TEST_F(TableCommand, EveryTableIsNarrowFiniteDrawableAndTheSameAsCsv) {
  const json list = json::parse(contextile({"table", "--list", "--json"}).out);
  ASSERT_GT(list["tables"].size(), kSlow.size());
  std::filesystem::create_directory(path("rows"));
  static_cast<void>(
      file("rows/plans.csv",
           "source,split,cluster,method,strategy,lengths,mask,q_heads,kv_heads,head_dim,dtype,"
           "direction,ms\n"
           "me,judged,dgx-h100:1x2,p2p,zigzag,4K,causal,8,2,128,bf16,forward,0.2\n"
           "me,judged,dgx-h100:1x2,plain,ring,4K,causal,8,2,128,bf16,forward,0.3\n"));
  for (const json& listed : list["tables"]) {
    const std::string name = listed["name"];
    if (kSlow.contains(name)) continue;
    SCOPED_TRACE(name);
    const std::vector<std::string> options =
        name == "measured" ? std::vector<std::string>{"--rows", path("rows")} : small_options(name);
    expect_readable(contextile(joined({"table", name}, options)));
    const json document = json::parse(contextile(joined({"table", name, "--json"}, options)).out);
    EXPECT_THAT(document.dump(), testing::Not(HasSubstr("null"))) << "not a finite number";
    expect_drawable(document);
    const std::string csv = contextile(joined({"table", name, "--csv"}, options)).out;
    EXPECT_EQ(std::ranges::count(csv, '\n'), 1 + std::ssize(document["rows"]));
  }
}

TEST_F(TableCommand, SweepsOverEveryStrategy) {
  const json document = small_table("sweep");
  std::int64_t plans = 0;
  for (const json& row : document["rows"]) {
    EXPECT_EQ(row["plans"].get<std::int64_t>() + row["skipped"].get<std::int64_t>(), 5) << row;
    plans += row["plans"].get<std::int64_t>();
    if (row["plans"] == 0) continue;
    EXPECT_GE(row["of_bound"].get<double>(), 1) << row;
    EXPECT_GE(row["of_fastest"].get<double>(), 1) << row;
    if (row["strategy"] == "auto") {
      EXPECT_DOUBLE_EQ(row["of_fastest"].get<double>(), 1);
    }
    if (row["strategy"] == "distca") {
      EXPECT_EQ(row["skipped"], 4) << row;
    }
  }
  EXPECT_THAT(document["setting"]["plans"].get<std::string>(),
              testing::StartsWith(fmt::format("{}, each verified", plans)));
  EXPECT_TRUE(document["findings"].empty()) << "a violation ends the run: none could fail";
}

TEST_F(TableCommand, PrintsTheTableAloneAsCsv) {
  const Outcome outcome = contextile({"table", "dcp-fig7", "--csv"});
  EXPECT_EQ(outcome.out.rfind("strategy,transfers,redundant_transfers,", 0), 0U) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("\nring,48,38,"));
}

TEST_F(TableCommand, RefusesBadInput) {
  expect_bad_input(contextile({"table"}), {"name of a table", "--list", "found none"});
  expect_bad_input(contextile({"table", "fcp-tabel2"}),
                   {"expected one of dcp-fig1, dcp-fig5, dcp-fig7,", "'fcp-tabel2'",
                    "did you mean 'fcp-table2'?"});
  expect_bad_input(contextile({"table", "dcp-fig7", "--list"}), {"both"});
  expect_bad_input(contextile({"table", "dcp-fig7", "--json", "--csv"}), {"both"});
  expect_bad_input(contextile({"table", "dcp-fig7", "--dataset", "prolong"}), {"--dataset"});
  expect_bad_input(contextile({"table", "dcp-fig7", "--tokens", "100"}),
                   {"multiple of 16 tokens", "100"});
  expect_bad_input(contextile({"table", "dcp-fig7", "--seed", "4"}), {"dcp-fig7", "--seed"});
  expect_bad_input(contextile({"table", "dcp-fig1", "--heads", "4"}), {"dcp-fig1", "--heads"});
  expect_bad_input(contextile({"table", "dcp-fig17", "--block-size", "64"}), {"--block-size"});
  for (const char* name : {"fcp-fig9", "fcp-fig10", "fcp-fig11", "fcp-fig12"}) {
    expect_bad_input(contextile({"table", name, "--cluster", "p4de:1x4"}), {name, "--cluster"});
  }
  expect_bad_input(contextile({"table", "dcp-fig20", "--dataset", "prolonged"}),
                   {"did you mean 'prolong'?"});
  expect_bad_input(contextile({"table", "dcp-fig20", "--kv-heads", "3"}), {"3"});
}

TEST_F(TableCommand, TellsWhyARowIsEmpty) {
  const std::vector<std::string> command = {
      "table",      "dcp-fig13", "--tokens",  "16K",      "--dataset", "longdatacollections",
      "--batches",  "1",         "--cluster", "p4de:1x2", "--heads",   "1",
      "--kv-heads", "1"};  // one head cannot be split
  bool noted = false;
  for (const Row& row : rows_of(contextile(joined(command, {"--csv"})).out)) {
    EXPECT_EQ(row.at("total_s").empty(), !row.at("note").empty());
    noted = noted || !row.at("note").empty();
  }
  EXPECT_TRUE(noted);
  for (const json& row : json::parse(contextile(joined(command, {"--json"})).out)["rows"]) {
    EXPECT_NE(row.contains("total_s"), row.contains("note")) << row;
  }
}

TEST_F(TableCommand, MakesWholeStepsOfTrainingAgain) {
  const Outcome outcome = contextile({"table", "dcp-fig15", "--dataset", "longalign", "--batches",
                                      "1", "--tokens", "16K", "--cluster", "p4de:2x8", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json document = json::parse(outcome.out);
  EXPECT_EQ(document.at("rows").size(), 4U * 4U);
  for (const json& row : document.at("rows")) {
    EXPECT_NEAR(row.at("gain").get<double>(),
                row.at("baseline_s").get<double>() / row.at("dcp_s").get<double>(), 1e-9);
  }
  EXPECT_EQ(document.at("findings").size(), 6U);
  std::map<std::string, std::vector<double>> gains;
  for (const json& row : document.at("rows")) {
    EXPECT_EQ(row.at("gain_p10"), row.at("gain_p90")) << "of one batch";
    EXPECT_NEAR(row.at("gain_p10").get<double>(), row.at("gain").get<double>(), 1e-9);
    gains[row.at("mask")].push_back(row.at("gain"));
  }
  int faster = 0;
  int ordered = 0;
  for (const char* mask : {"lambda", "blockwise", "shared"}) {
    for (std::size_t i = 0; i < 4; ++i) {
      if (gains.at(mask)[i] > 1) ++faster;
      if (gains.at(mask)[i] > gains.at("shared")[i]) ++ordered;
    }
  }
  EXPECT_THAT(document["findings"][4]["ours"].get<std::string>(),
              HasSubstr(fmt::format("in {} of 12 settings", faster)));
  EXPECT_EQ(document["findings"][5]["ours"], fmt::format("in {} of 8 comparisons", ordered));
  expect_bad_input(contextile({"table", "dcp-fig15", "--heads", "8"}), {"dcp-fig15", "--heads"});
  expect_bad_input(contextile({"table", "distca-fig9", "--tokens", "8K"}), {"--tokens"});
}

}  // namespace
}  // namespace contextile
