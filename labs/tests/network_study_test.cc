// Plans on the chunk network next to the simulator, disturbed times, and changed orders.
#include "labs/network/network_study.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "cli/program.h"
#include "contextile/advanced/model.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "labs/network/chunk_machine.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr AttentionShape kShape = {.q_heads = 16, .kv_heads = 8};

Plan plan_of(const char* strategy, const Cluster& cluster) {
  const std::vector<std::int64_t> lengths = {20000, 9000, 3000};
  const Workload workload = make_workload(lengths, kShape);
  return *plan_and_check(workload, cluster, parse_strategies(strategy).front()).plan;
}

// Chunk time over simulated time.
double ratio_of(const Plan& plan, const Cluster& cluster, const ChunkOptions& options = {}) {
  NetworkPrograms programs(plan);
  const double simulated_us = programs.set_times(plan, cluster);
  EXPECT_DOUBLE_EQ(simulated_us, simulate(plan, cluster).time_us());
  return chunk_time_us(programs.programs(), cluster, options) / simulated_us;
}

TEST(NetworkPrograms, MoveTheBytesOfThePlan) {
  const Plan plan = plan_of("hybrid", load_cluster("dgx-h100:2x4"));
  const NetworkPrograms programs(plan);
  ASSERT_EQ(programs.programs().size(), 2U);
  const PlanStats stats = statistics(plan);
  for (std::size_t i = 0; i < 2; ++i) {
    const DirectionStats& direction = i == 0 ? *stats.forward : *stats.backward;
    std::int64_t bytes = 0;
    for (const NetworkMessage& message : programs.programs()[i].messages) bytes += message.bytes;
    EXPECT_EQ(bytes, direction.total_bytes());
    EXPECT_EQ(std::ssize(programs.programs()[i].messages), direction.messages);
  }
}

TEST(NetworkPrograms, RefuseMessagesThatDoNotMatch) {
  Plan plan = plan_of("ring", load_cluster("dgx-h100:1x2"));
  for (Instruction& instruction : plan.rounds[0].devices[1].programs[0].forward->instructions) {
    if (auto* launch = std::get_if<LaunchOp>(&instruction)) launch->recvs.clear();
  }
  EXPECT_THROW(NetworkPrograms{plan}, InvalidPlan);
}

TEST(ChunkNetwork, AgreesWithTheSimulatorWhereNoPortIsShared) {
  for (const char* strategy : {"ring", "zigzag", "all_gather"}) {
    for (const char* name : {"dgx-h100:1x8", "dgx-h100:2x4", "dgx-h100:2x4,engine=torch"}) {
      for (const bool flows : {false, true}) {
        for (const LaunchOrder launches : {LaunchOrder::kConcurrent, LaunchOrder::kGrouped}) {
          Cluster cluster = load_cluster(name);
          cluster.launches = launches;
          if (flows) cluster.flow_gbytes_per_s = {{2, 20}};
          EXPECT_NEAR(ratio_of(plan_of(strategy, cluster), cluster), 1, 1e-2)
              << strategy << " on " << name;
        }
      }
    }
  }
}

TEST(ChunkNetwork, ComesNearTheSimulatorAsChunksShrink) {
  // One uplink for eight devices, which all send to all.
  const Cluster cluster = load_cluster("p4de:2x8");
  for (const char* strategy : {"ulysses", "magi", "dcp"}) {
    const Plan plan = plan_of(strategy, cluster);
    EXPECT_NEAR(ratio_of(plan, cluster, {.chunk_bytes = 8192, .window = 2}), 1, 5e-3) << strategy;
  }
}

TEST(Disturbances, ChangeEveryConstantWithinTheShare) {
  Cluster cluster = load_cluster("dgx-h100:2x8,engine=torch");
  cluster.flow_gbytes_per_s = {{2, 40}, {4, 20}};
  const Cluster changed = with_wrong_constants(cluster, 0.3, 5);
  check_cluster(changed);
  EXPECT_EQ(with_wrong_constants(cluster, 0.3, 5).attention_tflops, changed.attention_tflops);
  const std::vector<double> factors = {
      changed.attention_tflops / cluster.attention_tflops,
      changed.attention.call_us / cluster.attention.call_us,
      changed.memory_gbytes_per_s / cluster.memory_gbytes_per_s,
      changed.intra_gbytes_per_s / cluster.intra_gbytes_per_s,
      changed.inter_gbytes_per_s_per_node / cluster.inter_gbytes_per_s_per_node,
      changed.intra_latency_us / cluster.intra_latency_us,
      changed.inter_latency_us / cluster.inter_latency_us,
      changed.launch_us / cluster.launch_us,
      changed.engine.host_stage_us / cluster.engine.host_stage_us,
      changed.flow_gbytes_per_s[0].gbytes_per_s / 40};
  for (const double factor : factors) EXPECT_NEAR(factor, 1, 0.3);
  EXPECT_EQ(std::set<double>(factors.begin(), factors.end()).size(), factors.size());
  EXPECT_DOUBLE_EQ(changed.flow_gbytes_per_s[1].gbytes_per_s / 20, factors.back());
}

TEST(Disturbances, SlowOneDeviceAndSpreadInstructions) {
  NetworkProgram program;
  program.devices.assign(4, std::vector<NetworkStep>(20000, NetworkStep{.duration_us = 1}));
  std::vector<NetworkProgram> programs = {program};
  add_noise(programs, {}, 3, 4);
  std::int32_t slow = 0;
  for (const std::vector<NetworkStep>& steps : programs[0].devices) {
    double sum = 0;
    double squares = 0;
    for (const NetworkStep& step : steps) {
      sum += step.duration_us;
      squares += step.duration_us * step.duration_us;
    }
    const double mean = sum / static_cast<double>(steps.size());
    const double deviation =
        std::sqrt(squares / static_cast<double>(steps.size()) - mean * mean) / mean;
    EXPECT_NEAR(deviation, 0.05, 0.002);
    EXPECT_TRUE(std::abs(mean - 1) < 0.002 || std::abs(mean - 1.1) < 0.002) << mean;
    slow += mean > 1.05 ? 1 : 0;
  }
  EXPECT_EQ(slow, 1);
}

TEST(NetworkStudy, OfALayerAddsLinearLayersOfTheFullestDevice) {
  StudyOptions options;
  options.settings = {"h100-lambda"};
  options.draws = 0;
  const auto times_of = [&](bool of_layer) {
    options.of_layer = of_layer;
    std::map<std::string, StudiedPlan> plans;
    const std::vector<StudiedSetting> studied = study_network(options);
    for (const StudiedPlan& plan : studied.front().plans) {
      plans[choice_text(plan.choice)] = plan;
    }
    return plans;
  };
  const auto attention = times_of(false);
  const auto layer = times_of(true);
  const double token_us =
      guessed_linear_us_per_token({.q_heads = 32, .kv_heads = 8}, load_cluster("dgx-h100:1x8"));
  // ulysses in zigzag chunks owns the mean of 32K tokens, and at most a few more.
  const double linear_us = layer.at("ulysses").simulated_us - attention.at("ulysses").simulated_us;
  EXPECT_NEAR(linear_us, 3 * token_us * 4096, 0.02 * linear_us);
  EXPECT_NEAR(layer.at("ulysses").chunk_us - attention.at("ulysses").chunk_us, linear_us,
              1e-6 * linear_us);
}

TEST(OrderChanges, CountWinnersAndFlippedPairsByTheirGap) {
  const std::vector<double> predicted = {100, 101, 104, 120};
  OrderChanges changes;
  changes.add(predicted, predicted);
  EXPECT_EQ(changes.other_winners, 0);
  EXPECT_EQ(changes.flipped[0].pairs, 5);  // all but the first two
  EXPECT_EQ(changes.flipped[1].pairs, 3);
  EXPECT_EQ(changes.flipped[2].pairs, 3);
  EXPECT_EQ(changes.flipped[0].flipped, 0);
  // The third becomes the fastest: it flips with the first two, more than 2% apart from both.
  changes.add(predicted, std::vector<double>{110, 101, 100, 120});
  EXPECT_EQ(changes.draws, 2);
  EXPECT_EQ(changes.other_winners, 1);
  EXPECT_EQ(changes.flipped[0].flipped, 2);
  EXPECT_EQ(changes.flipped[1].flipped, 0);
  EXPECT_NEAR(changes.worst_loss(), 0.1, 1e-12);
  EXPECT_NEAR(changes.mean_loss(), 0.05, 1e-12);
  // Plans with the same predicted time win together.
  OrderChanges tied;
  tied.add(std::vector<double>{5, 5, 9}, std::vector<double>{7, 6, 9});
  EXPECT_EQ(tied.other_winners, 0);
  tied.add(changes);
  EXPECT_EQ(tied.draws, 3);
  EXPECT_EQ(tied.flipped[0].flipped, 2);
  EXPECT_THROW(tied.add(predicted, std::vector<double>{1}), InvalidArgument);
}

class NetworkCommand : public ProgramTest {
 protected:
  [[nodiscard]] static std::vector<std::string> quick(const std::vector<std::string>& more) {
    return joined({"network", "--setting", "h100-lambda", "--draws", "2"}, more);
  }
};

TEST_F(NetworkCommand, PrintsBothTimesAndChangedOrders) {
  const std::string text = output(quick({}));
  EXPECT_THAT(text, AllOf(HasSubstr("lambda:64,4096, on dgx-h100:1x8"), HasSubstr("zigzag"),
                          HasSubstr("median difference"), HasSubstr("aim: within 5.0%: met"),
                          HasSubstr("chunks, slow device and jitter")))
      << text;
  const json document = this->document(quick({"--json"}));
  EXPECT_EQ(document, this->document(quick({"--json"}))) << "draws depend on their seed alone";
  EXPECT_GE(document["plans"].size(), 10U);
  for (const json& plan : document["plans"]) EXPECT_NEAR(plan["ratio"], 1, 0.05) << plan;
  ASSERT_EQ(document["orders"].size(), 8U);  // four kinds of the setting, and of all
  EXPECT_EQ(document["orders"][1]["draws"], 2);
  EXPECT_EQ(rows_of(output(quick({"--csv"}))).size(), document["plans"].size());
}

TEST_F(NetworkCommand, FollowsItsOptions) {
  const json document =
      this->document({"network", "--setting", "h100-lambda", "--draws", "0", "--chunk-bytes", "64K",
                      "--window", "2", "--queue", "fifo", "--json"});
  EXPECT_EQ(document["chunk_bytes"], 65536);
  EXPECT_EQ(document["window"], 2);
  EXPECT_EQ(document["queue"], "fifo");
  EXPECT_EQ(document["orders"].size(), 2U) << "without draws, only the chunk model";
}

TEST_F(NetworkCommand, RefusesBadOptions) {
  expect_bad_input(contextile({"network", "--setting", "h200"}), {"h100-lambda", "found 'h200'"});
  expect_bad_input(contextile({"network", "--chunk-bytes", "0"}), {"--chunk-bytes"});
  expect_bad_input(contextile({"network", "--queue", "lifo"}), {"--queue", "found 'lifo'"});
  expect_bad_input(contextile({"network", "--json", "--csv"}), {"--json", "--csv"});
}

}  // namespace
}  // namespace contextile
