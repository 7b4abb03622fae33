// contextile helix: tables, JSON and CSV of decoding; what it refuses.
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

class HelixCommand : public ProgramTest {
 protected:
  // A few devices and loads unless `more` names others.
  [[nodiscard]] Outcome helix(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = joined({"helix"}, more);
    const std::vector<std::vector<std::string>> usual = {
        {"--contexts", "8K,1M"}, {"--batches", "1,8"}, {"--devices", "8,64"}};
    for (const auto& option : usual) {
      if (std::ranges::find(more, option[0]) == more.end()) {
        arguments = joined(std::move(arguments), option);
      }
    }
    return contextile(arguments);
  }
  [[nodiscard]] json document(const std::vector<std::string>& more) const {
    const Outcome outcome = helix(joined(more, {"--json"}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out);
  }
  // The row of `rows` that has all of `keys`.
  [[nodiscard]] static json row(const json& rows, const json& keys) {
    for (const json& candidate : rows) {
      const bool found = std::ranges::all_of(keys.items(), [&](const auto& item) {
        return candidate.contains(item.key()) && candidate.at(item.key()) == item.value();
      });
      if (found) return candidate;
    }
    ADD_FAILURE() << "no row has " << keys;
    return {};
  }
};

// Sharing the rows of a prompt beats sharing its heads, and costs memory.
TEST_F(HelixCommand, PredictsTheFirstTokenOfPrompts) {
  const std::vector<std::string> asked = {"--model",    "llama-3-8b", "--hardware", "h100",
                                          "--contexts", "8K",         "--devices",  "8",
                                          "--prompts",  "8K,100K"};
  EXPECT_THAT(helix(asked).out, HasSubstr("time to the first token of one prompt in one step"));
  const json rows = document(asked)["prompts"];
  ASSERT_EQ(rows.size(), 2U * 7);
  const json tensor = row(rows, {{"prompt_tokens", 102'400}, {"layout", "1x8/8x1"}});
  const json shared =
      row(rows, {{"prompt_tokens", 102'400}, {"layout", "8x1/8x1"}, {"rows", "own"}});
  const json repeated =
      row(rows, {{"prompt_tokens", 102'400}, {"layout", "8x1/8x1"}, {"rows", "all"}});
  EXPECT_LT(shared["time_s"], tensor["time_s"]);
  EXPECT_LT(tensor["time_s"], repeated["time_s"]);
  EXPECT_GT(shared["weights_bytes"], tensor["weights_bytes"]);
  EXPECT_EQ(shared["mode"], "pass_kv");
  EXPECT_FALSE(document({"--devices", "8"}).contains("prompts"));
}

TEST_F(HelixCommand, PrintsTablesOfAtMost80Columns) {
  for (const char* model : {"llama-3-405b", "deepseek-r1"}) {
    const Outcome outcome = helix({"--model", model, "--prompts", "8K", "--pareto", "64"});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    for (const char* part :
         {"where context parallelism loses", "longest context that fits", "most requests that fit",
          "where the time goes", "Pareto front", "Helix against others"}) {
      EXPECT_THAT(outcome.out, HasSubstr(part));
    }
    for (std::size_t begin = 0; begin < outcome.out.size();) {
      const std::size_t end = outcome.out.find('\n', begin);
      EXPECT_LE(end - begin, 80U) << outcome.out.substr(begin, end - begin);
      begin = end + 1;
    }
  }
}

TEST_F(HelixCommand, FindsWhereSharingTokensLoses) {
  const json all = document({});
  const json& losses = all.at("losses");
  const json few = row(losses, {{"devices", 8}, {"batch", 8}});
  EXPECT_FALSE(few.contains("crossover_tokens"));
  EXPECT_THAT(few.at("verdict").get<std::string>(), HasSubstr("loses up to 1048576"));
  const json many = row(losses, {{"devices", 64}, {"batch", 8}});
  const auto crossover = many.at("crossover_tokens").get<std::int64_t>();
  EXPECT_EQ(many.at("verdict"), "loses below " + std::to_string(crossover) + " tokens");
  const json longer =
      row(document({"--contexts", "1M"}).at("losses"), {{"devices", 64}, {"batch", 8}});
  EXPECT_EQ(longer.at("verdict"), "pays from " + std::to_string(crossover) + " tokens on");
  EXPECT_LT(many.at("others_s"), many.at("sharing_s"));
  for (const json& loss : losses) {
    EXPECT_NEAR(loss.at("loss").get<double>(),
                loss.at("sharing_s").get<double>() / loss.at("others_s").get<double>() - 1, 1e-9);
  }

  const auto gain = [&](std::int64_t context) {
    const json times =
        document({"--contexts", std::to_string(context), "--batches", "8"}).at("times");
    return row(times, {{"devices", 64}}).at("gain").get<double>();
  };
  EXPECT_LT(gain(crossover - 1), 1);
  EXPECT_GT(gain(crossover), 1);
}

TEST_F(HelixCommand, PartsOfAStepAddUp) {
  const json parts = document({}).at("parts");
  ASSERT_EQ(parts.size(), 8U);
  for (const json& part : parts) {
    const double sum = part.at("kv_s").get<double>() + part.at("weights_s").get<double>() +
                       part.at("all_reduce_s").get<double>() + part.at("exposed_s").get<double>();
    EXPECT_NEAR(sum, part.at("time_s").get<double>(), 1e-12);
  }
  const auto helix_s = [&](const char* reading) {
    return row(parts, {{"family", "Helix"}, {"hop_b", reading}}).at("time_s").get<double>();
  };
  EXPECT_LT(helix_s("attention"), helix_s("off"));
  EXPECT_LE(helix_s("feed_forward"), helix_s("off"));
}

TEST_F(HelixCommand, OptionsChangeWhatTheySay) {
  const auto helix_s = [&](const std::vector<std::string>& more) {
    return row(document(more).at("times"),
               {{"context_tokens", 1 << 20}, {"devices", 64}, {"batch", 8}})
        .at("helix_s")
        .get<double>();
  };
  const double plain = helix_s({});
  EXPECT_GT(helix_s({"--kv-bytes", "2"}), plain);
  EXPECT_GT(helix_s({"--weight-bytes", "1"}), plain);
  EXPECT_GT(helix_s({"--activation-bytes", "4"}), plain);
  EXPECT_LT(helix_s({"--latency", "1"}), plain);
  EXPECT_LT(helix_s({"--memory-bandwidth", "9000"}), plain);
  EXPECT_GT(helix_s({"--network-bandwidth", "50"}), plain);
  EXPECT_GT(helix_s({"--hop-b", "off"}), plain);
  EXPECT_GE(helix_s({"--batches", "8", "--groups", "8"}), plain);
  const auto tokens = [&](const std::vector<std::string>& more) {
    return row(document(more).at("contexts"), {{"devices", 64}, {"batch", 8}})
        .at("helix_context_tokens")
        .get<std::int64_t>();
  };
  EXPECT_LT(tokens({"--reserve", "8G"}), tokens({}));
  EXPECT_GT(tokens({"--memory", "288G"}), tokens({}));
}

TEST_F(HelixCommand, TakesItsDevicesFromTheHardware) {
  const Outcome outcome = contextile({"helix", "--hardware", "h200", "--model", "llama-3-8b",
                                      "--batches", "1", "--contexts", "8K", "--csv"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 2) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("context_tokens,batch,devices,tensor_parallel_s"));
  EXPECT_THAT(outcome.out, HasSubstr("\n8192,1,8,"));
}

TEST_F(HelixCommand, LeavesOutWhatDoesNotFit) {
  const json all = document({"--memory", "2G"});
  EXPECT_FALSE(all.at("times")[0].contains("helix_s"));
  EXPECT_EQ(all.at("contexts")[0].at("helix_context_tokens"), 0);
  EXPECT_EQ(all.at("parts"), json::array());
}

TEST_F(HelixCommand, RefusesWhatMakesNoSense) {
  expect_bad_input(helix({"--model", "llama"}), {"llama-3-405b", "deepseek-r1", "found 'llama'"});
  expect_bad_input(helix({"--hardware", "b200"}), {"gb200, h200, h100", "'b200'"});
  expect_bad_input(helix({"--devices", "3"}), {"--devices", "found 3"});
  expect_bad_input(helix({"--devices", "128"}), {"at most 72 devices", "found 128"});
  expect_bad_input(helix({"--contexts", "8K,"}), {"--contexts", "found ''"});
  expect_bad_input(helix({"--batches", "0"}), {"--batches", "at least 1", "'0'"});
  expect_bad_input(helix({"--kv-bytes", "0"}), {"cached element", "more than 0"});
  expect_bad_input(helix({"--latency", "x"}), {"--latency", "'x'"});
  expect_bad_input(helix({"--hop-b", "on"}), {"off, attention, feed_forward", "'on'"});
  expect_bad_input(helix({"--groups", "3"}), {"groups that divide"});
  expect_bad_input(helix({"--json", "--csv"}), {"either --json or --csv"});
}

}  // namespace
}  // namespace contextile
