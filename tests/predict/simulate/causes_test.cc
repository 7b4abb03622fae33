// Causes of time: they are found if they exist, and measured by simulations without them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "predict/simulate/what_if.h"
#include "support/batches.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

Plan plan_of(const std::string& strategy, const Workload& workload, const Cluster& cluster) {
  return build_plan(workload, cluster, find_strategy(strategy).arrange(workload, cluster, {}));
}

std::vector<TimeCause> all_causes(const Plan& plan, const Cluster& cluster) {
  return causes_of_time(plan, cluster, simulate(plan, cluster, {.timeline = true}), 100);
}

const TimeCause* find(const std::vector<TimeCause>& causes, Cause cause) {
  const auto found = std::ranges::find(causes, cause, &TimeCause::cause);
  return found == causes.end() ? nullptr : &*found;
}

TEST(Causes, ARingOfOneCausalDocumentIsImbalanced) {
  const Cluster cluster = cluster_of("dgx-h100", 1, 4);
  const Plan plan = plan_of("ring", default_batch_of({65536}), cluster);
  const std::vector<TimeCause> causes = all_causes(plan, cluster);
  ASSERT_FALSE(causes.empty());
  EXPECT_EQ(causes.front().cause, Cause::kImbalance);
  EXPECT_EQ(causes.front().device, Rank{3});  // the last quarter sees all keys
  EXPECT_NEAR(causes.front().ratio, 7.0 / 4, 0.05);
  EXPECT_GT(causes.front().path_us, 0);
  EXPECT_GT(causes.front().gain_us, 0.9 * causes.front().path_us);
  // Even work leaves its mean.
  const Simulation simulation = simulate(plan, cluster);
  EXPECT_GE(causes.front().without_us,
            simulation.forward->attention_us + simulation.backward->attention_us);
  const std::vector<TimeCause> even =
      all_causes(plan_of("zigzag", default_batch_of({65536}), cluster), cluster);
  const TimeCause* imbalance = find(even, Cause::kImbalance);
  EXPECT_TRUE(imbalance == nullptr || imbalance->ratio < 1.05);
}

TEST(Causes, ASlowUplinkIsNamedWithItsBytes) {
  Cluster cluster = cluster_of("dgx-h100", 2, 2);
  cluster.nics_per_node = 1;
  cluster.inter_gbytes_per_s_per_node = 1;
  const Plan plan = plan_of("zigzag", default_batch_of({32768}), cluster);
  const std::vector<TimeCause> causes = all_causes(plan, cluster);
  ASSERT_FALSE(causes.empty());
  const TimeCause& cause = causes.front();
  EXPECT_EQ(cause.cause, Cause::kNodeLinks);
  ASSERT_TRUE(cause.port.has_value());
  const Simulation simulation = simulate(plan, cluster);
  EXPECT_EQ(cause.bytes, (simulation.forward->inter_bytes + simulation.backward->inter_bytes) / 2);
  // With an uplink no slower than the rest, the time is about the one without its limit.
  Cluster fast = cluster;
  fast.inter_gbytes_per_s_per_node = 1e9;
  EXPECT_NEAR(cause.without_us / simulate(plan, fast).time_us(), 1, 1e-3);
}

TEST(Causes, SlowFlowsAreNamed) {
  Cluster cluster = cluster_of("dgx-h100", 2, 2);
  cluster.flow_gbytes_per_s = {{.nodes = 2, .gbytes_per_s = 0.5}};
  const Plan plan = plan_of("zigzag", default_batch_of({32768}), cluster);
  const std::vector<TimeCause> causes = all_causes(plan, cluster);
  ASSERT_FALSE(causes.empty());
  EXPECT_EQ(causes.front().cause, Cause::kFlows);
  EXPECT_GT(causes.front().steps, 0);
  EXPECT_EQ(find(causes, Cause::kNodeLinks), nullptr);
  EXPECT_EQ(find(causes, Cause::kDeviceLinks), nullptr);
  Cluster free = cluster;
  free.flow_gbytes_per_s.clear();
  EXPECT_EQ(causes.front().without_us, simulate(plan, free).time_us());
}

TEST(Causes, AnEnginesHostAndMergesAreNamed) {
  Cluster cluster = cluster_of("dgx-h100", 1, 4);
  const Plan plan = plan_of("zigzag", default_batch_of({8192}), cluster);
  const double native_us = simulate(plan, cluster).time_us();
  cluster.engine = {.name = "slow", .host_stage_us = 700};
  std::vector<TimeCause> causes = all_causes(plan, cluster);
  ASSERT_FALSE(causes.empty());
  EXPECT_EQ(causes.front().cause, Cause::kHost);
  EXPECT_GT(causes.front().steps, 0);
  EXPECT_GT(causes.front().path_us, 0);
  EXPECT_EQ(causes.front().without_us, native_us);
  cluster.engine = {.name = "apart", .merge_bytes_per_element = 3000};
  causes = all_causes(plan, cluster);
  ASSERT_FALSE(causes.empty());
  EXPECT_EQ(find(causes, Cause::kHost), nullptr);
  ASSERT_NE(find(causes, Cause::kMerging), nullptr);
  EXPECT_GT(find(causes, Cause::kMerging)->gain_us, 0);
  EXPECT_GT(find(causes, Cause::kMerging)->path_us, 0);
  // Steps of the host are not counted as launches.
  cluster.engine = {.name = "both", .host_stage_us = 300};
  cluster.launch_us = 500;
  causes = all_causes(plan, cluster);
  ASSERT_NE(find(causes, Cause::kLaunches), nullptr);
  std::int64_t launches = 0;
  const Simulation shown = simulate(plan, cluster, {.timeline = true});
  for (const auto& [direction, simulated] : shown.directions()) {
    for (const PathStep& step : critical_path(*simulated)) {
      if (step.kind != StepKind::kLaunch) continue;
      launches +=
          simulated->programs.front().activities[static_cast<std::size_t>(step.activity)].launch >=
          0;
    }
  }
  EXPECT_EQ(find(causes, Cause::kLaunches)->steps, launches);
}

TEST(Causes, FixedCostsOfSmallWorkAreFound) {
  Cluster cluster = cluster_of("dgx-h100", 1, 4);
  cluster.intra_latency_us = 500;
  cluster.attention.call_us = 300;
  cluster.launch_us = 100;
  const std::vector<TimeCause> causes =
      all_causes(plan_of("zigzag", default_batch_of({2048}), cluster), cluster);
  for (const Cause cause : {Cause::kLatency, Cause::kCalls, Cause::kLaunches}) {
    SCOPED_TRACE(to_string(cause));
    const TimeCause* found = find(causes, cause);
    ASSERT_NE(found, nullptr);
    EXPECT_GT(found->steps, 0);
    EXPECT_GT(found->path_us, 0);
  }
  Cluster without = cluster;
  without.intra_latency_us = without.inter_latency_us = 0;
  EXPECT_EQ(find(causes, Cause::kLatency)->without_us,
            simulate(plan_of("zigzag", default_batch_of({2048}), cluster), without).time_us());
}

TEST(Causes, ComputeThatTransfersTakeOrDevicesShareIsFound) {
  Cluster cluster = cluster_of("dgx-h100", 1, 4);
  cluster.compute_slots_per_node = 2;
  cluster.sm_fraction = 0.3;
  const std::vector<TimeCause> causes =
      all_causes(plan_of("zigzag", default_batch_of({32768}), cluster), cluster);
  for (const Cause cause : {Cause::kSharedSlots, Cause::kStolenCompute}) {
    SCOPED_TRACE(to_string(cause));
    ASSERT_NE(find(causes, cause), nullptr);
    EXPECT_GT(find(causes, cause)->path_us, 0);
  }
}

TEST(Causes, APlanThatTakesNoTimeHasNone) {
  Workload workload = default_batch_of({8});
  workload.masks.front().mask.bands.clear();
  Cluster cluster = cluster_of("dgx-h100", 1, 2);
  cluster.compute_slots_per_node = 1;
  const Plan plan = plan_of("dcp", workload, cluster);
  ASSERT_EQ(simulate(plan, cluster).time_us(), 0);
  EXPECT_TRUE(all_causes(plan, cluster).empty());
}

TEST(Causes, SumUpWhatTheirSimulationsSay) {
  Chance chance(8);
  for (int i = 0; i < 6; ++i) {
    const RandomBatch batch = random_batch_of(chance);
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(fmt::format("{}, {}", batch.text, named.name));
      const Simulation simulation = simulate(named.plan, batch.cluster, {.timeline = true});
      double last_us = simulation.time_us();
      const std::vector<TimeCause> causes =
          causes_of_time(named.plan, batch.cluster, simulation, 3);
      EXPECT_LE(causes.size(), 3U);
      for (const TimeCause& cause : causes) {
        EXPECT_GE(cause.gain_us, 1e-3 * simulation.time_us());
        EXPECT_LE(cause.gain_us, last_us);  // largest first
        EXPECT_DOUBLE_EQ(cause.without_us + cause.gain_us, simulation.time_us());
        EXPECT_GE(cause.path_us, 0);
        EXPECT_LE(cause.path_us, simulation.time_us() * (1 + 1e-9));
        last_us = cause.gain_us;
      }
    }
  }
}

// --------------------------------------------------------------------------------- what if

TEST(WhatIf, NothingChangesNothing) {
  Chance chance(3);
  for (int i = 0; i < 8; ++i) {
    const RandomBatch batch = random_batch_of(chance);
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(fmt::format("{}, {}", batch.text, named.name));
      const double us = simulate(named.plan, batch.cluster).time_us();
      EXPECT_EQ(simulate(named.plan, batch.cluster, {.timeline = true}).time_us(), us);
      EXPECT_EQ(simulate_if(named.plan, batch.cluster, {}, {}).time_us(), us);
      // Rounds that are one change nothing either; of several none becomes slower.
      const double joined_us =
          simulate_if(named.plan, batch.cluster, {}, {.without_barriers = true}).time_us();
      if (named.plan.rounds.size() == 1) {
        EXPECT_DOUBLE_EQ(joined_us, us);
      }
    }
  }
}

TEST(WhatIf, WithoutBarriersADeviceGoesOnWhenItIsDone) {
  // A plan of two rounds, twice the same: devices that compute longer do so in both.
  const Cluster cluster = cluster_of("dgx-h100", 1, 2);
  Plan plan = plan_of("ring", default_batch_of({16384}), cluster);
  plan.rounds.push_back(plan.rounds.front());
  const Simulation simulation = simulate(plan, cluster);
  const Simulation joined = simulate_if(plan, cluster, {}, {.without_barriers = true});
  EXPECT_EQ(joined.forward->programs.size(), 1U);
  EXPECT_DOUBLE_EQ(joined.forward->flops, simulation.forward->flops);
  EXPECT_EQ(joined.forward->intra_bytes, simulation.forward->intra_bytes);
  EXPECT_LE(joined.time_us(), simulation.time_us() * (1 + 1e-9));
  for (std::size_t d = 0; d < 2; ++d) {
    EXPECT_NEAR(joined.forward->devices[d].of(Activity::kAttention),
                simulation.forward->devices[d].of(Activity::kAttention), 1e-6);
  }
}

TEST(WhatIf, EvenAttentionGivesEveryDeviceTheMean) {
  const Cluster cluster = cluster_of("dgx-h100", 1, 4);
  const Plan plan = plan_of("ring", default_batch_of({16384, 300}), cluster);
  const Simulation simulation = simulate(plan, cluster);
  const Simulation even = simulate_if(plan, cluster, {}, {.even_attention = true});
  for (const DeviceTimes& device : even.forward->devices) {
    EXPECT_NEAR(device.of(Activity::kAttention), simulation.forward->attention_us, 1e-6);
  }
}

}  // namespace
}  // namespace contextile
