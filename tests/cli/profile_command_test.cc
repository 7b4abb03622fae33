// `contextile profile` and the predictions with its files, end to end. Nothing here depends on how
// fast the machine is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/program.h"
#include "contextile/cluster.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// The options of the fastest profile.
const std::vector<std::string> kQuick = {"profile",    "--quick", "--heads",    "1",
                                         "--kv-heads", "1",       "--head-dim", "8"};

class ProfileCommand : public ProgramTest {
 protected:
  [[nodiscard]] Outcome quick(const std::vector<std::string>& more) const {
    return contextile(joined(kQuick, more));
  }
  // A cluster file of two ranks; empty when it could not be made.
  [[nodiscard]] std::string machine() const {
    const Outcome outcome = quick({"--ranks", "2", "-o", path("machine.json")});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return path("machine.json");
  }
};

TEST_F(ProfileCommand, WritesAClusterFileAndPrintsWhatItMeasured) {
  const Outcome outcome = quick({"--ranks", "2", "-o", path("machine.json")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_LE(longest_line(outcome.out), 80U) << outcome.out;
  for (const char* words :
       {"2 ranks at once, 1/1 heads of 8", "forward, GFLOP/s", "backward, GFLOP/s",
        "messages on inproc", "attention_tflops", "compute_slots_per_node"}) {
    EXPECT_THAT(outcome.out, HasSubstr(words));
  }
  const Cluster cluster = load_cluster(path("machine.json"));
  EXPECT_EQ(cluster.nodes, 1);
  EXPECT_EQ(cluster.devices_per_node, 2);
  EXPECT_EQ(cluster.name.rfind("local-", 0), 0U) << cluster.name;
  EXPECT_GT(cluster.attention_tflops, 0);
  EXPECT_EQ(cluster.attention.q_rows, cluster.attention.kv_rows);
  EXPECT_GE(cluster.attention.q_rows.size(), 2U);
  EXPECT_LE(cluster.compute_slots(), 2);
}

TEST_F(ProfileCommand, WithoutAFilePrintsTheClusterAlone) {
  const Outcome outcome = quick({"--ranks", "1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const Cluster cluster = parse_cluster_json(outcome.out, "stdout");
  EXPECT_EQ(cluster.num_devices(), 1);
  EXPECT_EQ(cluster.compute_slots_per_node, 0);
}

TEST_F(ProfileCommand, DocumentHoldsSamplesAndTheCluster) {
  const Outcome outcome = quick({"--ranks", "3", "--json", "-o", path("m.json")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json document = json::parse(outcome.out);
  EXPECT_EQ(document.at("command"), "profile");
  EXPECT_EQ(document.at("transport"), "inproc");
  EXPECT_EQ(document.at("ranks"), 3);
  EXPECT_EQ(document.at("file"), path("m.json"));
  EXPECT_EQ(document.at("cluster"), json::parse(read(path("m.json"))));
  const std::size_t sizes = document.at("cluster").at("attention").at("q_rows").size();
  EXPECT_EQ(document.at("kernel_samples").size(), sizes * sizes);
  for (const json& sample : document.at("kernel_samples")) {
    EXPECT_GT(sample.at("forward_s"), 0);
    EXPECT_GT(sample.at("backward_s"), 0);
  }
  std::set<std::int64_t> groups;
  for (const json& sample : document.at("transfers")) {
    groups.insert(sample.at("ranks").get<std::int64_t>());
    EXPECT_GT(sample.at("seconds"), 0);
  }
  EXPECT_EQ(groups, (std::set<std::int64_t>{2, 3}));
}

TEST_F(ProfileCommand, RefusesBadOptions) {
  expect_bad_input(quick({"--ranks", "0"}), {"--ranks: expected a whole number of at least 1"});
  expect_bad_input(quick({"--ranks", "257"}), {"expected 1 to 256 ranks, found 257"});
  expect_bad_input(quick({"--kernel", "fast"}), {"kernel: expected one of", "found 'fast'"});
  expect_bad_input(quick({"--transport", "rdma"}), {"--transport: expected", "'rdma'"});
  expect_bad_input(quick({"--nodes", "2"}), {"--nodes", "processes", "inproc"});
  expect_bad_input(quick({"--dtype", "i8"}), {"dtype: expected one of", "'i8'"});
  expect_bad_input(contextile({"profile", "--heads", "6", "--kv-heads", "4"}),
                   {"expected kv_heads to divide the 6 query heads, found 4"});
  expect_bad_input(quick({"extra"}), {"expected no more arguments", "'extra'"});
}

TEST_F(ProfileCommand, AFileThatCannotBeWrittenIsTheEnvironmentsFault) {
  for (const std::string& output : {path("no/such/folder.json"), std::string("/dev/full")}) {
    const Outcome outcome = quick({"--ranks", "1", "-o", output});
    EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(output));
  }
}

TEST_F(ProfileCommand, PlanSimulateRunAndCompareTakeTheFile) {
  const std::string machine = this->machine();
  const std::vector<std::string> batch = {"--lengths",  file("l.txt", "60\n40\n20\n"),
                                          "--heads",    "2",
                                          "--kv-heads", "2",
                                          "--head-dim", "8",
                                          "--cluster",  machine};
  const std::string plan = path("own.plan");
  ASSERT_EQ(contextile(joined({"plan", "-o", plan, "--strategy", "zigzag"}, batch)).exit_code, 0);
  const Outcome simulated = contextile({"simulate", plan, "--cluster", machine, "--json"});
  ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
  const json times = json::parse(simulated.out);
  EXPECT_GT(times.at("forward").at("time_s"), 0);

  const Outcome ran = contextile({"run", plan, "--predict", "--cluster", machine, "--json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const json mask = json::parse(ran.out).at("masks").at(0);
  EXPECT_EQ(mask.at("predicted_forward_s"), times.at("forward").at("time_s"));
  EXPECT_EQ(mask.at("predicted_backward_s"), times.at("backward").at("time_s"));

  const Outcome compared =
      contextile(joined({"compare", "--run", "--repeats", "2", "--kernel", "reference", "--json",
                         "--strategy", "zigzag,ring,all_gather"},
                        batch));
  ASSERT_EQ(compared.exit_code, 0) << compared.err;
  const json document = json::parse(compared.out);
  EXPECT_LE(std::abs(document.at("rank_correlation").get<double>()), 1);
  EXPECT_LE(document.at("pairs_in_predicted_order"), document.at("pairs_apart"));
  EXPECT_LE(document.at("pairs_apart"), 3);
  const json& zigzag = document.at("strategies").at(0);
  EXPECT_DOUBLE_EQ(zigzag.at("predicted_forward_s").get<double>(),
                   times.at("forward").at("time_s").get<double>());
  EXPECT_EQ(zigzag.at("batches").at(0).at("predicted").at("forward_s"),
            zigzag.at("predicted_forward_s"));
}

class Prediction : public ProgramTest {};

TEST_F(Prediction, RunPrintsPredictedBesideMeasuredTimes) {
  const std::string plan =
      small_plan("p.plan", {"--mask", "local=sliding_window:32", "--mask", "causal"});
  const Outcome outcome = contextile({"run", plan, "--predict"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_LE(longest_line(outcome.out), 80U) << outcome.out;
  EXPECT_THAT(outcome.out,
              HasSubstr("time, predicted for this machine (a quick profile) and measured here"));
  EXPECT_THAT(outcome.out, HasSubstr("predicted /"));
  const Outcome without = contextile({"run", plan});
  EXPECT_EQ(without.out.find("measured here"), std::string::npos);
}

TEST_F(Prediction, RunSaysWhenItsMachineIsAGuess) {
  const std::string lengths = file("l.txt", "100\n");
  const std::string plan = path("guess.plan");
  ASSERT_EQ(
      contextile({"plan", "-o", plan, "--lengths", lengths, "--cluster", "local:1x2"}).exit_code,
      0);
  const Outcome outcome =
      contextile({"run", plan, "--predict", "--no-compare", "--cluster", "local:1x2"});
  EXPECT_THAT(outcome.out, HasSubstr("predicted on local (round guesses"));
  const Outcome other =
      contextile({"run", plan, "--predict", "--no-compare", "--cluster", "dgx-h200:1x2"});
  EXPECT_THAT(other.out, HasSubstr("predicted on dgx-h200 and measured here"));
}

TEST_F(Prediction, RunRefusesAMachineOfAnotherShape) {
  const std::string plan = small_plan("p.plan");
  expect_bad_input(contextile({"run", plan, "--predict", "--cluster", "dgx-h200:1x4"}),
                   {"--cluster dgx-h200:1x4", "1 x 4", "2 x 2"});
}

TEST_F(Prediction, CompareHasPredictedTimesThatNoBoundExceeds) {
  const std::vector<std::string> arguments =
      joined({"compare", "--mask", "causal"}, small_batch(file("lengths.txt", "100\n37\n119\n")));
  const Outcome text = contextile(arguments);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_LE(longest_line(text.out), 80U) << text.out;
  EXPECT_THAT(text.out, HasSubstr("predicted on dgx-h200"));
  EXPECT_THAT(contextile(joined(arguments, {"--details"})).out, HasSubstr("bound"));
  const json document = json::parse(contextile(joined(arguments, {"--json"})).out);
  EXPECT_FALSE(document.contains("rank_correlation"));
  std::size_t applied = 0;
  for (const json& row : document.at("strategies")) {
    SCOPED_TRACE(row.at("strategy"));
    if (row.contains("skipped")) {
      EXPECT_FALSE(row.contains("predicted_total_s"));
      continue;
    }
    ++applied;
    EXPECT_GE(row.at("predicted_of_bound"), 1);
    EXPECT_GE(row.at("predicted_exposed"), 0);
    EXPECT_LE(row.at("predicted_exposed"), 1);
    EXPECT_GT(row.at("predicted_mfu"), 0);
    EXPECT_LT(row.at("predicted_mfu"), 1);
    EXPECT_DOUBLE_EQ(
        row.at("predicted_total_s").get<double>(),
        row.at("predicted_forward_s").get<double>() + row.at("predicted_backward_s").get<double>());
    const json& predicted = row.at("batches").at(0).at("predicted");
    for (const std::string direction : {"forward", "backward"}) {
      EXPECT_LE(predicted.at(direction + "_bound_s"), predicted.at(direction + "_s"));
      EXPECT_THAT((std::vector<std::string>{"compute", "device ports", "node uplinks", "latency",
                                            "compute and latency"}),
                  testing::Contains(predicted.at(direction + "_bound_binding")));
    }
  }
  EXPECT_GT(applied, 5U);
}

TEST_F(Prediction, CompareAsCsvHasThePredictedColumns) {
  const Outcome outcome = contextile(joined({"compare", "--csv", "--strategy", "zigzag"},
                                            small_batch(file("lengths.txt", "100\n37\n119\n"))));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              HasSubstr(",predicted_forward_s,predicted_backward_s,predicted_total_s,"
                        "predicted_of_bound,predicted_exposed,predicted_mfu,predicted_layer_s,"
                        "predicted_uneven_s\n"));
}

TEST_F(Prediction, CompareShowsLayersWhereTokensHaveACost) {
  const auto compare = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"compare",   "--json",      "--strategy", "zigzag,dcp,auto",
                                      "--dataset", "prolong",     "--tokens",   "32K",
                                      "--cluster", "dgx-h200:1x4"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = contextile(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out).at("strategies");
  };
  // 32 query and 8 KV heads of 128: the guess is a layer of Llama 3 8B.
  EXPECT_EQ(compare({})[0].at("predicted_layer_s"),
            compare({"--linear-layers", "llama-3-8b"})[0].at("predicted_layer_s"));
  double longest_auto = 0;
  for (const auto& row : compare({"--linear-layers", "2"})) {
    const auto& statistics = row.at("batches")[0].at("statistics");
    const double most_tokens = 32768.0 / 4 * (1 + statistics.at("token_overload").get<double>());
    const double layer = row.at("predicted_layer_s");
    EXPECT_NEAR(layer, row.at("predicted_total_s").get<double>() + 3 * 2e-6 * most_tokens, 1e-9);
    EXPECT_NEAR(row.at("predicted_uneven_s"), 3 * 2e-6 * (most_tokens - 32768.0 / 4), 1e-9);
    if (row.at("strategy") == "auto") longest_auto = layer;
  }
  for (const auto& row : compare({"--linear-layers", "2"})) {
    EXPECT_LE(longest_auto, row.at("predicted_layer_s"));
  }
  for (const auto& row : compare({"--linear-layers", "llama-3-8b"})) {
    EXPECT_GT(row.at("predicted_layer_s"), row.at("predicted_total_s"));
  }
  const Outcome bad =
      contextile({"compare", "--dataset", "prolong", "--tokens", "32K", "--linear-layers", "-1"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("--linear-layers: expected 0 to 1000000 us, found '-1'"));
  expect_bad_input(contextile({"compare", "--dataset", "prolong", "--tokens", "32K", "--heads", "8",
                               "--kv-heads", "2", "--linear-layers", "llama-3-8b"}),
                   {"--linear-layers: expected the heads of 'llama-3-8b', 32/8 of 128, found 8/2"});
  for (const char* text : {"nan", "inf", "5us"}) {
    expect_bad_input(
        contextile({"compare", "--dataset", "prolong", "--tokens", "32K", "--linear-layers", text}),
        {"--linear-layers: expected microseconds or a model", text});
  }
}

TEST_F(Prediction, CompareWithRunPutsMeasuredTimesBesidePredictedOnes) {
  const Outcome outcome = contextile(joined({"compare", "--run", "--strategy", "zigzag,magi"},
                                            small_batch(file("lengths.txt", "100\n37\n119\n"))));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_LE(longest_line(outcome.out), 80U) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("time, predicted for this machine and measured here"));
  EXPECT_THAT(outcome.out, HasSubstr("rank correlation"));
  EXPECT_THAT(outcome.out, HasSubstr("in the predicted order"));
}

}  // namespace
}  // namespace contextile
