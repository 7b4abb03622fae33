// `contextile-labs table` on the FCP paper's tables and on the parts of the time of DCP's steps.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class FcpTables : public ProgramTest {
 protected:
  [[nodiscard]] json table(const std::vector<std::string>& arguments) const {
    const Outcome outcome = contextile(joined({"table", "--json"}, arguments));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out);
  }
};

// Rows of a table by one of its labels.
json row_with(const json& document, const std::string& key, const json& value) {
  for (const json& row : document["rows"]) {
    if (row.contains(key) && row[key] == value) return row;
  }
  ADD_FAILURE() << "no row with " << key << " " << value;
  return {};
}

TEST_F(FcpTables, HidesABlockAsTheArithmeticSays) {
  const json document = table({"fcp-sec35", "--tokens", "256K", "--cluster", "dgx-h100:1x8"});
  EXPECT_EQ(document["rows"].size(), 3U * 2 * 4);
  for (const json& row : document["rows"]) {
    const auto block = row["block_tokens"].get<double>();
    // dgx-h100 (FA3 class): a rectangle costs its pairs, 218 keys more a row, 9600 pairs more.
    const double pairs = block * block + 218 * block + 9600;
    const double tile_us = pairs * 4 * 64 * 128 / 650e12 * 1e6;
    EXPECT_NEAR(row["tile_us"].get<double>(), tile_us, 0.02 * tile_us) << row;
    // Keys and values of 8 heads of 128 as bf16.
    const double bytes = block * 2 * 8 * 128 * 2;
    EXPECT_NEAR(row["alone_gbytes_per_s"].get<double>(), 1e-3 * bytes / tile_us,
                0.02 * row["alone_gbytes_per_s"].get<double>())
        << row;
    EXPECT_GT(row["plan_gbytes_per_s"].get<double>(), 0);
  }
  EXPECT_EQ(document["findings"][0]["agrees"], true) << document["findings"];
}

TEST_F(FcpTables, ANetworkThatIsFarTooFastIsNoAgreement) {
  // 296 TFLOP/s: 16.8 MB in the 1957 us of 17.7M pairs are 8.6 GB/s for a block, well below what
  // the paper says.
  const std::string slow = file("slow.json", R"({"preset": "dgx-h100", "nodes": 1,
      "devices_per_node": 8, "attention_tflops": 296})");
  const json document = table({"fcp-sec35", "--tokens", "64K", "--cluster", slow});
  EXPECT_EQ(document["findings"][0]["ours"], "8.6 GB/s");
  EXPECT_EQ(document["findings"][0]["agrees"], false);
  EXPECT_THAT(document["findings"][0]["criterion"].get<std::string>(), HasSubstr("20%"));
  EXPECT_THAT(document["setting"]["machine"].get<std::string>(), HasSubstr("296 TFLOP/s"));
}

TEST_F(FcpTables, NeedsNoNetworkInsideANode) {
  // Bisection ends at its lower end: all messages stay in the node.
  const json document = table({"fcp-sec35", "--tokens", "64K", "--cluster", "dgx-h100:1x8"});
  for (const json& row : document["rows"]) {
    EXPECT_DOUBLE_EQ(row["plan_gbytes_per_s"].get<double>(), 0.43) << row;
    EXPECT_DOUBLE_EQ(row["slowdown"].get<double>(), 0) << row;
  }
  EXPECT_EQ(document["findings"].size(), 1U) << "plans that cross no network are no evidence";
}

TEST_F(FcpTables, NeedsAFasterNetworkWhereHeadsAreFew) {
  // Bytes of keys stay, work on them falls to an eighth.
  const std::vector<std::string> small = {"fcp-sec35", "--tokens", "512K", "--cluster",
                                          "dgx-h100:8x1"};
  const json many = table(small);
  const json few = table(joined(small, {"--heads", "8"}));
  for (std::size_t i = 0; i < many["rows"].size(); ++i) {
    EXPECT_NEAR(few["rows"][i]["alone_gbytes_per_s"].get<double>(),
                8 * many["rows"][i]["alone_gbytes_per_s"].get<double>(), 1e-6);
    if (many["rows"][i]["block_tokens"] != 4096) continue;
    EXPECT_GT(few["rows"][i]["plan_gbytes_per_s"].get<double>(),
              many["rows"][i]["plan_gbytes_per_s"].get<double>())
        << many["rows"][i];
  }
}

TEST_F(FcpTables, ShowsRatiosOfThePresetsBesideThePapers) {
  const json document = table({"fcp-table1"});
  EXPECT_EQ(row_with(document, "machine", "GPU-X")["paper_flops_per_byte"], 5920);
  EXPECT_EQ(row_with(document, "machine", "GPU-Y")["paper_flops_per_byte"], 2500);
  // 989 TFLOP/s over 344 / 8 GB/s, and over 335.
  const json h100 = row_with(document, "machine", "dgx-h100");
  EXPECT_NEAR(h100["network_flops_per_byte"].get<double>(), 23000, 1e-6);
  EXPECT_NEAR(h100["node_flops_per_byte"].get<double>(), 989e3 / 335, 1e-6);
  EXPECT_EQ(document["findings"][0]["agrees"], false);  // presets have measured rates
  const json one = table({"fcp-table1", "--cluster", "p4de"});
  EXPECT_EQ(one["rows"].size(), 3U);
  EXPECT_EQ(one["findings"][0]["agrees"], false);
}

TEST_F(FcpTables, TakesRatiosOfAMachineThatIsGiven) {
  const std::string machine = file("x.json", R"({"name": "x", "preset": "dgx-h100", "nodes": 2,
    "devices_per_node": 1, "inter_gbytes_per_s_per_node": 50, "peak_tflops": 296})");
  const json document = table({"fcp-table1", "--cluster", machine});
  EXPECT_NEAR(row_with(document, "machine", "x")["network_flops_per_byte"].get<double>(), 5920,
              1e-6);
}

TEST_F(FcpTables, ReachesAboutAQuarterOfThePeakInPiecesOf512) {
  // The preset's 218 keys a row: as below, 131328 of 285312 pairs at 650 of 989 TFLOP/s.
  const json document = table({"fcp-shards", "--batches", "1"});
  EXPECT_NEAR(row_with(document, "length", 512)["causal_mfu"].get<double>(), 0.30, 0.005);
  EXPECT_EQ(document["findings"][0]["agrees"], true);
}

TEST_F(FcpTables, ShowsWhichLengthsCauseWhat) {
  const json document = table({"fcp-fig2", "--batches", "4"});
  for (const char* lengths : {"lognormal512k", "mixture512k"}) {
    double before = 0;
    for (const json& row : document["rows"]) {
      if (row["lengths"] != lengths) continue;
      // Shorter documents have more of the documents than of the tokens than of the FLOPs.
      EXPECT_GE(row["documents"], row["communication"]) << row;
      EXPECT_GE(row["communication"], row["flops"]) << row;
      EXPECT_GE(row["flops"].get<double>(), before) << row;
      before = row["flops"];
      if (row["length"] == 4096) {
        EXPECT_NEAR(row["communication"].get<double>(), 0.5, 0.05) << row;
      }
    }
    EXPECT_DOUBLE_EQ(before, 1);
  }
}

TEST_F(FcpTables, ChargesShortPieces) {
  const json document =
      table({"fcp-shards", "--tokens", "256K", "--cluster", "dgx-h100:1x8", "--batches", "1"});
  const json shortest = row_with(document, "length", 512);
  // In addition to the 512 · 513 / 2 pairs of a causal document the kernel computes 64 · 512 more,
  // at 218 keys more per row and 9600 pairs more.
  const double pairs = 512.0 * 513 / 2;
  const double mfu = pairs / (pairs + (64 + 218) * 512 + 9600) * 650 / 989;
  EXPECT_NEAR(shortest["causal_mfu"].get<double>(), mfu, 0.02 * mfu);
  double before = 0;
  for (const json& row : document["rows"]) {
    EXPECT_GE(row["ring_share"].get<double>(), before) << row;
    before = row["ring_share"];
    EXPECT_LE(row["fcp_share"].get<double>(), row["ring_share"].get<double>()) << row;
    if (row["length"] <= 4096) {
      EXPECT_EQ(row["fcp_share"].get<double>(), 0) << row;
    }
  }
  EXPECT_LE(before, 1);
}

TEST_F(FcpTables, TakesSharesOfOneGpuFromTimes) {
  const json document = table({"fcp-fig14", "--tokens", "256K", "--cluster", "dgx-h100:2x4",
                               "--batches", "1", "--dataset", "longdatacollections"});
  EXPECT_EQ(document["rows"].size(), 6U);
  // One GPU has the same MFU, whatever the strategy.
  const auto one_gpu = [](const json& row) {
    return row["forward_mfu"].get<double>() / row["forward_share"].get<double>();
  };
  for (const json& row : document["rows"]) {
    EXPECT_EQ(row["devices"], 8);
    EXPECT_NEAR(one_gpu(row), one_gpu(document["rows"][0]), 1e-9) << row;
    EXPECT_LT(one_gpu(row), 692.0 / 989) << row;
    EXPECT_LE(row["forward_share"].get<double>(), 1) << row;
    EXPECT_EQ(row["forward_spread"], 0) << row;  // of one batch
  }
}

TEST_F(FcpTables, ChargesMultiprocessorsForTransfersToPlansAndNotToOneGpu) {
  const std::vector<std::string> batch = {"fcp-fig14", "--tokens",  "64K",     "--batches",
                                          "1",         "--dataset", "prolong", "--cluster"};
  const json all = row_with(table(joined(batch, {"h20:1x1"})), "strategy", "zigzag");
  const json kept =
      row_with(table(joined(batch, {"h20:1x1,transfer_sms=6"})), "strategy", "zigzag");
  EXPECT_NEAR(all["forward_share"].get<double>(), 1, 0.01);
  EXPECT_NEAR(kept["forward_share"].get<double>(), 72.0 / 78, 0.01);
}

TEST_F(FcpTables, ComparesLengthsOfFourKinds) {
  const json document =
      table({"fcp-lengths", "--tokens", "128K", "--cluster", "dgx-h100:1x8", "--batches", "2"});
  EXPECT_EQ(document["rows"].size(), 4U * 7);
  for (const json& row : document["rows"]) {
    // All gains are over FCP in blocks of one size, whichever size is faster.
    if (row["strategy"] == "fcp") {
      EXPECT_DOUBLE_EQ(row["gain"].get<double>(), 1) << row;
    }
    EXPECT_GT(row["memory_bytes"], 0) << row;
    if (row["lengths"] != "bimodal") {
      EXPECT_GT(row["forward_spread"], 0) << row;
    }
  }
  EXPECT_THAT(document["setting"]["fcp"].get<std::string>(), HasSubstr("blocks of 4096 tokens"));
}

TEST_F(FcpTables, SaysWhichBlockSizeItsVerdictsAreOf) {
  const std::vector<std::string> small = {"fcp-fig14",    "--tokens",  "64K", "--cluster",
                                          "dgx-h100:1x8", "--batches", "1"};
  EXPECT_THAT(table(small)["setting"]["fcp"].get<std::string>(), HasSubstr("4096 tokens, the"));
  const json other = table(joined(small, {"--block-size", "512"}));
  EXPECT_THAT(other["setting"]["fcp"].get<std::string>(), HasSubstr("blocks of 512 tokens;"));
  EXPECT_EQ(other["findings"][0]["agrees"],
            row_with(other, "strategy", "fcp")["forward_share"].get<double>() > 0.7);
}

TEST_F(FcpTables, OneDeviceThatDoesWholeDocumentsHasItsOwnMfu) {
  const std::vector<std::string> batch = {"fcp-fig14", "--tokens",  "128K",    "--batches",
                                          "1",         "--dataset", "prolong", "--cluster"};
  const json alone = row_with(table(joined(batch, {"dgx-h100:1x1"})), "strategy", "zigzag");
  EXPECT_NEAR(alone["forward_share"].get<double>(), 1, 0.01);
  // Eight devices: an eighth of that device's time over theirs.
  for (const json& row : table(joined(batch, {"dgx-h100:2x4"}))["rows"]) {
    const double share = row["forward_mfu"].get<double>() / alone["forward_mfu"].get<double>();
    EXPECT_NEAR(row["forward_share"].get<double>(), share, 0.01 * share) << row;
  }
}

TEST_F(FcpTables, ChargesSmallTilesAsWorkThatOneGpuWouldNotDo) {
  // One device, so nothing moves: the loss is the kernel's on small tiles, in both directions.
  const std::vector<std::string> one = {"fcp-table2",   "--tokens",  "64K", "--cluster",
                                        "dgx-h100:1x1", "--batches", "1",   "--block-size"};
  const json whole = row_with(table(joined(one, {"64K"})), "step", "+ coalescer");
  const json small = row_with(table(joined(one, {"256"})), "step", "+ coalescer");
  for (const char* share : {"forward_share", "backward_share"}) {
    EXPECT_NEAR(whole[share].get<double>(), 1, 0.01) << whole;
    EXPECT_LT(small[share].get<double>(), whole[share].get<double>() - 0.01) << small;
  }
  // Eight devices: all are busy computing, and yet slower.
  const json eight = table({"fcp-table2", "--tokens", "256K", "--cluster", "dgx-h100:1x8",
                            "--batches", "1", "--block-size", "256"});
  const json row = row_with(eight, "step", "+ congestion-free");
  EXPECT_LT(row["forward_share"].get<double>(), 0.75) << row;
}

TEST_F(FcpTables, AddsComponentsStepByStep) {
  const json document = table({"fcp-table2", "--tokens", "256K", "--cluster", "dgx-h100:2x4",
                               "--batches", "1", "--block-size", "1024"});
  ASSERT_EQ(document["rows"].size(), 6U);
  const auto forward = [&](const char* step) {
    return row_with(document, "step", step)["forward_mfu"].get<double>();
  };
  EXPECT_GE(forward("+ pipelining"), forward("base"));
  // Moving data from and to the caller's layout costs, however it is hidden.
  EXPECT_LT(forward("caller's layout"), forward("+ coalescer"));
  EXPECT_LT(forward("+ reshuffler"), forward("+ coalescer"));
  EXPECT_EQ(row_with(document, "step", "+ reshuffler")["forward_paper"], 0.75);
  EXPECT_FALSE(row_with(document, "step", "caller's layout").contains("forward_paper"));
  for (const json& row : document["rows"]) {
    for (const std::string way : {"forward", "backward"}) {
      EXPECT_GT(row[way + "_mfu"].get<double>(), 0) << row;
      EXPECT_LT(row[way + "_mfu"].get<double>(), row[way + "_share"].get<double>()) << row;
      EXPECT_LE(row[way + "_share"].get<double>(), 1) << row;
    }
  }
  EXPECT_THAT(document["differences"].dump(), HasSubstr("plans on 8 devices"));
}

TEST_F(FcpTables, AComponentThatAddsNothingIsNoAgreement) {
  // On one device nothing moves: no component has anything to gain.
  const json document =
      table({"fcp-table2", "--tokens", "16K", "--cluster", "dgx-h100:1x1", "--batches", "1"});
  for (const json& finding : document["findings"]) {
    EXPECT_EQ(finding["agrees"], false) << finding;
    EXPECT_NE(finding["criterion"], "") << finding;
  }
}

// The parts of a step's time that add up to it.
double sum_of_parts(const json& row) {
  double sum = 0;
  for (const char* part : {"attention_s", "exposed_s", "idle_s", "other_s"}) {
    EXPECT_GE(row[part].get<double>(), 0) << row;
    sum += row[part].get<double>();
  }
  return sum;
}

TEST_F(FcpTables, SplitsAStepIntoItsParts) {
  const json document =
      table({"dcp-fig22", "--tokens", "16K", "--cluster", "p4de:2x8", "--batches", "1"});
  EXPECT_EQ(document["rows"].size(), 8U);
  for (const json& row : document["rows"]) {
    EXPECT_NEAR(sum_of_parts(row), row["step_s"].get<double>(), 1e-9) << row;
    EXPECT_GE(row["overlapped_s"].get<double>(), 0);
    EXPECT_LE(row["overlapped_s"].get<double>(), row["attention_s"].get<double>() * 1.0001);
  }
  // The same step as `iterate` predicts it.
  const Outcome outcome = started(CONTEXTILE_PRODUCT, {"iterate",   "--model",
                                                       "gpt-8b",    "--dataset",
                                                       "longalign", "--tokens",
                                                       "16K",       "--max-length",
                                                       "16K",       "--long-documents",
                                                       "drop",      "--cluster",
                                                       "p4de:2x8",  "--tp",
                                                       "4",         "--cp",
                                                       "4",         "--micro-batches",
                                                       "1",         "--strategy",
                                                       "dcp",       "--wire",
                                                       "bf16",      "--gradient-overlap",
                                                       "off",       "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json step = json::parse(outcome.out);
  EXPECT_NEAR(row_with(document, "strategy", "dcp")["step_s"].get<double>(),
              step["steps"][0]["time_s"].get<double>(), 1e-9);
}

TEST_F(FcpTables, ExposesMoreTheMoreDevicesThereAre) {
  const json document = table({"dcp-fig1", "--tokens", "32K", "--batches", "1"});
  ASSERT_EQ(document["rows"].size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    const json& row = document["rows"][i];
    EXPECT_EQ(row["devices"], 16 << i);
    EXPECT_EQ(row["cp"], 4 << i);
    EXPECT_NEAR(sum_of_parts(row), row["step_s"].get<double>(), 1e-9) << row;
    EXPECT_NEAR(row["exposed_share"].get<double>() * row["step_s"].get<double>(),
                row["exposed_s"].get<double>(), 1e-9);
  }
}

TEST_F(FcpTables, RefusesWhatATableCannotFollow) {
  expect_bad_input(contextile({"table", "fcp-sec35", "--block-size", "1K"}),
                   {"fcp-sec35", "--block-size"});
  expect_bad_input(contextile({"table", "fcp-table1", "--tokens", "1K"}),
                   {"fcp-table1", "--tokens"});
  expect_bad_input(contextile({"table", "fcp-lengths", "--dataset", "prolong"}),
                   {"fcp-lengths", "--dataset"});
  const std::vector<std::vector<std::string>> ignored = {
      {"fcp-fig9", "--tokens", "1M"},      {"fcp-fig10", "--seed", "9"},
      {"fcp-fig10", "--batches", "7"},     {"fcp-fig11", "--tokens", "1M"},
      {"fcp-fig12", "--block-size", "1K"}, {"fcp-fig14", "--wire", "f32"},
      {"fcp-shards", "--wire", "f32"}};
  for (const std::vector<std::string>& option : ignored) {
    expect_bad_input(contextile(joined({"table"}, option)), {option[0], "found " + option[1]});
  }
  for (const char* name : {"dcp-fig1", "dcp-fig22"}) {
    expect_bad_input(contextile({"table", name, "--heads", "8"}), {name, "--heads"});
  }
}

TEST_F(FcpTables, ListsPapersTogetherAndFiguresInOrder) {
  const json listed = json::parse(contextile({"table", "--list", "--json"}).out);
  std::vector<std::string> names;
  for (const json& row : listed["tables"]) names.push_back(row["name"]);
  const auto place = [&names](const char* name) {
    const auto it = std::find(names.begin(), names.end(), name);
    EXPECT_NE(it, names.end()) << name;
    return it - names.begin();
  };
  const std::vector<const char*> order = {"dcp-fig1",    "dcp-fig7",     "dcp-fig13",  "dcp-fig22",
                                          "fcp-fig9",    "fcp-fig10",    "fcp-table1", "fcp-table2",
                                          "distca-fig9", "distca-fig10", "sweep"};
  for (std::size_t i = 1; i < order.size(); ++i) {
    EXPECT_LT(place(order[i - 1]), place(order[i])) << order[i - 1] << " and " << order[i];
  }
  EXPECT_EQ(names.back(), "sweep");
}

}  // namespace
}  // namespace contextile
