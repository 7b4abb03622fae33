// contextile serve --simulate: tables, JSON and CSV of predicted serving; what it refuses.
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

class SimulatedServing : public ProgramTest {
 protected:
  [[nodiscard]] Outcome simulate(const std::vector<std::string>& more,
                                 const std::string& trace = "poisson:requests=20") const {
    return contextile(joined({"serve", "--simulate", trace, "--model", "llama-3-8b"}, more));
  }
  [[nodiscard]] json runs(const std::vector<std::string>& more,
                          const std::string& trace = "poisson:requests=20") const {
    const Outcome outcome = simulate(joined(more, {"--json"}), trace);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out).at("runs");
  }
};

TEST_F(SimulatedServing, PrintsTablesOfAtMost80Columns) {
  const Outcome outcome = simulate({"--devices", "1,8"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"TTFT ms", "TPOT ms", "preempt-", "what was served", "20 requests"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  for (std::size_t begin = 0; begin < outcome.out.size();) {
    const std::size_t end = outcome.out.find('\n', begin);
    EXPECT_LE(end - begin, 80U) << outcome.out.substr(begin, end - begin);
    begin = end + 1;
  }
  EXPECT_EQ(outcome.out, simulate({"--devices", "1,8"}).out);
}

TEST_F(SimulatedServing, ARequestAloneWaitsForItsChunksAlone) {
  const std::string trace =
      file("trace.jsonl", "{\"arrival_s\": 3, \"prompt_tokens\": 1024, \"output_tokens\": 2}\n");
  const std::vector<std::string> one = {"--devices", "1"};
  const json run = runs(joined(one, {"--step-tokens", "1024"}), trace)[0];
  EXPECT_EQ(run.at("family"), "TP");
  EXPECT_EQ(run.at("steps"), 2);
  EXPECT_NEAR(run.at("busy_s").get<double>(),
              run.at("ttft_p50_s").get<double>() + run.at("tpot_p50_s").get<double>(), 1e-12);
  EXPECT_NEAR(run.at("end_s").get<double>(), 3 + run.at("busy_s").get<double>(), 1e-12);
  EXPECT_EQ(runs(joined(one, {"--step-tokens", "256"}), trace)[0].at("steps"), 5);
}

TEST_F(SimulatedServing, OptionsChangeWhatTheySay) {
  const auto ttft = [&](const std::vector<std::string>& more, const std::string& trace) {
    return runs(joined(more, {"--devices", "2"}), trace)[0].at("ttft_p90_s").get<double>();
  };
  const std::string trace = "poisson:requests=20,prompt=8K,rate=10";
  const double plain = ttft({}, trace);
  EXPECT_GT(ttft({"--tflops", "100"}, trace), plain);
  EXPECT_GT(ttft({"--hardware", "h100"}, trace), plain);
  EXPECT_GT(ttft({"--memory-bandwidth", "500"}, trace), plain);
  EXPECT_GT(ttft({"--latency", "50"}, trace), plain);
  EXPECT_GT(ttft({"--weight-bytes", "2"}, trace), plain);
  EXPECT_GT(ttft({}, "poisson:requests=20,prompt=8K,rate=100"), plain);
  EXPECT_GT(ttft({"--max-running", "1"}, trace), plain);

  const auto run = [&](const std::vector<std::string>& more) {
    return runs(joined(more, {"--devices", "2"}), "poisson:requests=40,rate=20,shared=1")[0];
  };
  EXPECT_GT(run({}).at("hit_rate").get<double>(), 0.1);
  EXPECT_EQ(run({"--no-share-prefixes"}).at("hit_rate").get<double>(), 0);
  EXPECT_GT(run({"--kv-tokens", "32K"}).at("preemptions").get<int>(), 0);
  EXPECT_GT(run({"--max-waiting", "1", "--max-running", "2"}).at("refused").get<int>(), 0);
}

TEST_F(SimulatedServing, SaysWhereNothingFits) {
  const Outcome some = contextile(
      {"serve", "--simulate", "poisson:requests=5", "--model", "llama-3-405b", "--devices", "1,2"});
  EXPECT_EQ(some.exit_code, 0) << some.err;
  EXPECT_THAT(some.out, HasSubstr("no layout leaves room for the longest request"));
  const Outcome none = simulate({"--devices", "1", "--memory", "5G"});
  EXPECT_EQ(none.exit_code, 1) << none.err;
  const Outcome csv = simulate({"--devices", "1,2", "--csv"});
  EXPECT_THAT(csv.out, HasSubstr("devices,family,layout,ttft_p50_s"));
  EXPECT_EQ(std::ranges::count(csv.out, '\n'), 6) << csv.out;
}

TEST_F(SimulatedServing, SharedPromptsHaveARowOfTheirOwn) {
  const std::string trace =
      file("trace.jsonl", "{\"arrival_s\": 0, \"prompt_tokens\": 100000, \"output_tokens\": 2}\n");
  const std::vector<std::string> eight = {"--devices", "8", "--step-tokens", "128K"};
  const auto ttft = [&](const std::string& family, const std::vector<std::string>& more) {
    for (const json& run : runs(joined(eight, more), trace)) {
      if (run.at("family") == family) return run.at("ttft_p50_s").get<double>();
    }
    return 0.0;
  };
  EXPECT_GT(ttft("TP x CP", {}), 0);
  EXPECT_LT(ttft("TP x CP", {}), ttft("Helix", {}));
  EXPECT_LT(ttft("TP x CP", {}), ttft("TP", {}));
  EXPECT_LT(ttft("TP x CP", {}), ttft("TP x CP", {"--prefill", "pass_q"}));
  EXPECT_GT(ttft("TP x CP", {"--prefill-tokens", "200K"}), ttft("TP x CP", {}));
  EXPECT_EQ(ttft("TP x CP", {"--prefill", "off"}), 0);
}

TEST_F(SimulatedServing, RefusesWhatMakesNoSense) {
  expect_bad_input(simulate({"--port", "0"}), {"--port: expected without --simulate"});
  expect_bad_input(simulate({"--ranks", "2"}), {"--ranks: expected without --simulate"});
  expect_bad_input(simulate({"--transport", "gloo"}), {"--transport", "without --simulate"});
  expect_bad_input(contextile({"serve", "--devices", "2"}),
                   {"--devices: expected with --simulate"});
  expect_bad_input(contextile({"serve", "--json"}), {"--json: expected with --simulate"});
  expect_bad_input(simulate({"--prefill", "plan:ring"}), {"--prefill", "'plan:ring'"});
  expect_bad_input(simulate({"--json", "--csv"}), {"either --json or --csv"});
  expect_bad_input(contextile({"serve", "--simulate", "poisson", "--model", "llama"}),
                   {"llama-3-8b", "found 'llama'"});
  expect_bad_input(simulate({"--devices", "0"}), {"--devices", "at least 1"});
  expect_bad_input(simulate({"--devices", "128"}), {"--devices", "at most 72", "found 128"});
  expect_bad_input(simulate({"--tflops", "0"}), {"TFLOP/s", "more than 0"});
  expect_bad_input(simulate({}, "poisson:rate=x"), {"trace, rate", "'x'"});
  expect_bad_input(simulate({}, path("nothing.jsonl")), {"nothing.jsonl"});
  const std::string trace = file("bad.jsonl", "\n{\"arrival_s\": 0, \"prompt_tokens\": 4}\n");
  expect_bad_input(simulate({}, trace), {"bad.jsonl, line 2", "output_tokens"});
}

}  // namespace
}  // namespace contextile
