// Whole plans on the cost model.
#include "contextile/simulate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

Plan plan_of(const std::string& strategy, const Workload& workload, const Cluster& cluster) {
  return build_plan(workload, cluster, find_strategy(strategy).arrange(workload, cluster, {}));
}

TEST(TileCosts, AFullTileCostsItsFlopsAtTheProfilesShare) {
  const Cluster cluster = cluster_of("dgx-h100", 1, 1);
  AttentionShape shape;
  shape.q_heads = 64;
  const TileCosts costs(shape, cluster);
  const double flops = forward_flops(4096LL * 4096, 64, shape);
  const double share = cluster.attention.forward_share(4096, 4096);
  EXPECT_NEAR(costs.piece_us(Direction::kForward, 4096, 4096, 4096LL * 4096, 1),
              flops / (cluster.attention_tflops * 1e12 * share) * 1e6, 1e-6);
  EXPECT_NEAR(costs.piece_us(Direction::kForward, 4096, 4096, 4096LL * 4096, 8) * 8,
              costs.piece_us(Direction::kForward, 4096, 4096, 4096LL * 4096, 1), 1e-6);
}

TEST(Simulate, AnEngineMayMergeOutputsApartFromAttention) {
  // Two devices of a ring attend 512 queries twice: once to their own keys, once to the other's,
  // whose result is merged into the first. Under `full` both calls have the same size.
  Cluster cluster = cluster_of("dgx-h100", 1, 2);
  cluster.memory_gbytes_per_s = 1000;
  const Plan plan = plan_of("ring", default_batch_of({1024}, "full"), cluster);
  const Simulation native = simulate(plan, cluster);
  cluster.engine.merge_bytes_per_element = 34;
  const Simulation apart = simulate(plan, cluster);
  const double elements = 512.0 * plan.shape.q_heads * plan.shape.value_dim;
  for (std::size_t d = 0; d < 2; ++d) {
    EXPECT_NEAR(apart.forward->devices[d].of(Activity::kMerge) -
                    native.forward->devices[d].of(Activity::kMerge),
                34 * elements / 1e6, 1e-6);
    EXPECT_NEAR(apart.forward->devices[d].of(Activity::kAttention),
                native.forward->devices[d].of(Activity::kAttention), 1e-6);
    EXPECT_EQ(apart.backward->devices[d].of(Activity::kMerge),
              native.backward->devices[d].of(Activity::kMerge));
  }
}

TEST(Simulate, AHostBeginsEachDirectionOnceAndRunsAheadOverRounds) {
  Cluster cluster = cluster_of("dgx-h100", 1, 4);
  const Workload batch = default_batch_of({8192, 8192, 4096, 4096, 4096, 2048, 2048, 1024});
  StrategyRequest request;
  request.options["cap"] = "4096";
  const Plan plan = build_plan(batch, cluster,
                               find_strategy("megatron_dynamic").arrange(batch, cluster, request));
  ASSERT_GT(plan.rounds.size(), 1U);
  const Simulation native = simulate(plan, cluster);
  cluster.engine = {.name = "calls", .host_call_us = 5000};
  EXPECT_NEAR(simulate(plan, cluster).time_us(), native.time_us() + 2 * 5000,
              1e-6 * native.time_us());
  // A host that is quicker than the devices is never waited for after its first stage.
  cluster.engine = {.name = "stages", .host_stage_us = 1};
  EXPECT_LE(simulate(plan, cluster).time_us(), native.time_us() + 2 * 1 + 1e-6);
}

TEST(TileCosts, FollowThePublishedCurveOfShortAndLongDocuments) {
  // FA2-class, 64 heads: TFLOP/s at L = 128, 512, 1K, 4K, 32K as measured with DistCA.
  Cluster cluster = load_cluster("p4de");
  cluster.attention_tflops = 351;
  cluster.attention = AttentionProfile::from_overheads(51, 9600, 0.86);
  AttentionShape shape;
  shape.q_heads = 64;
  const TileCosts costs(shape, cluster);
  const std::pair<std::int64_t, double> published[] = {
      {128, 101}, {512, 202}, {1024, 267}, {4096, 337}, {32768, 361}};
  for (const auto& [length, tflops] : published) {
    const std::int64_t pairs = length * (length + 1) / 2;
    const double us = costs.piece_us(Direction::kForward, length, length, pairs, 1);
    const double found = forward_flops(pairs, 64, shape) / us * 1e-6;
    EXPECT_NEAR(found / tflops, 1, 0.2) << length;
  }
}

TEST(Simulate, TilesOfTheSameRowsInOneCallAreOneRun) {
  const Cluster cluster = cluster_of("dgx-h100", 1, 1);
  const Workload workload = batch_of({4096}, "full");
  const TileCosts costs(workload.shape, cluster);
  StrategyRequest request;
  request.backward = false;
  for (const std::int64_t block : {512, 4096}) {
    request.block_size = block;
    const Plan plan =
        build_plan(workload, cluster, find_strategy("ring").arrange(workload, cluster, request));
    const double run_us =
        costs.run_us(Direction::kForward, block, 4096.0 * static_cast<double>(block), 1);
    EXPECT_NEAR(simulate(plan, cluster).forward->attention_us,
                cluster.attention.call_us + static_cast<double>(4096 / block) * run_us, 1e-6)
        << block;
    EXPECT_EQ(statistics(plan).forward->tiles, (4096 / block) * (4096 / block));
  }
  // Short rows of keys cost more per pair than long ones.
  EXPECT_GT(8 * costs.piece_us(Direction::kForward, 512, 512, 512 * 512, 1),
            1.1 * costs.run_us(Direction::kForward, 512, 512.0 * 4096, 1));
}

TEST(Simulate, TellsHowManyInstructionsAreOver) {
  const Workload workload = batch_of(std::vector<std::int64_t>(64, 512), "causal");
  const Cluster cluster = load_cluster("dgx-h200:2x8");
  const Plan plan = plan_of("ring", workload, cluster);
  std::vector<std::int64_t> done;
  std::int64_t total = 0;
  const Simulation told = simulate(
      plan, cluster, {.progress = [&](std::string_view, std::int64_t over, std::int64_t all) {
        done.push_back(over);
        total = all;
      }});
  ASSERT_FALSE(done.empty());
  EXPECT_GE(total, done.back());
  EXPECT_EQ(told.time_us(), simulate(plan, cluster).time_us());
}

TEST(Simulate, OneDeviceTakesItsKernelTime) {
  const Cluster cluster = cluster_of("dgx-h100", 1, 1);
  const Workload workload = batch_of({5000, 300, 12000}, "causal");
  const Simulation simulation = simulate(plan_of("zigzag", workload, cluster), cluster);
  ASSERT_TRUE(simulation.forward && simulation.backward);
  EXPECT_NEAR(simulation.forward->time_us, simulation.forward->attention_us, 1e-9);
  EXPECT_EQ(simulation.forward->exposed_us, 0);
  EXPECT_GT(simulation.backward->time_us, 2 * simulation.forward->time_us);
  EXPECT_GT(simulation.forward->mfu, 0.2);
  EXPECT_LT(simulation.forward->mfu, 1);
}

TEST(Simulate, CompositeBlocksPayForEveryDocument) {
  const Cluster cluster = cluster_of("dgx-h100", 1, 1);
  const Simulation many = simulate(
      plan_of("zigzag", batch_of(std::vector<std::int64_t>(128, 128), "causal"), cluster), cluster);
  const Simulation few = simulate(
      plan_of("zigzag", batch_of(std::vector<std::int64_t>(4, 4096), "causal"), cluster), cluster);
  EXPECT_LT(many.forward->mfu, few.forward->mfu / 2);
}

TEST(Simulate, IsTheSameEveryTimeAndAddsUp) {
  const Cluster cluster = cluster_of("dgx-h100", 2, 4);
  for (const char* strategy :
       {"ring", "zigzag", "ulysses", "hybrid", "all_gather", "magi", "dcp"}) {
    SCOPED_TRACE(strategy);
    Workload workload = batch_of({9000, 300, 20000, 70}, "causal");
    workload.shape.q_heads = workload.shape.kv_heads = 8;
    const Plan plan = plan_of(strategy, workload, cluster);
    const Simulation a = simulate(plan, cluster, {.timeline = true});
    const Simulation b = simulate(plan, cluster);
    EXPECT_EQ(a.forward->time_us, b.forward->time_us);
    EXPECT_EQ(a.backward->time_us, b.backward->time_us);
    const PlanStats stats = statistics(plan);
    EXPECT_EQ(a.forward->inter_bytes, stats.forward->inter_bytes);
    EXPECT_EQ(a.backward->intra_bytes, stats.backward->intra_bytes);
    EXPECT_NEAR(a.backward->flops / stats.backward->flops, 1, 1e-12);
    for (const DeviceTimes& device : a.backward->devices) {
      EXPECT_NEAR(device.busy_us() + device.of(Activity::kExposed) + device.idle_us,
                  a.backward->time_us, 1e-6 * a.backward->time_us);
    }
    std::int64_t moved = 0;
    for (const SimulatedProgram& program : a.forward->programs) {
      for (const MessageSpan& message : program.messages) moved += message.bytes;
    }
    EXPECT_EQ(moved, stats.forward->total_bytes());
  }
}

// Scales every rate of a cluster that has no fixed overheads.
Cluster without_overheads(Cluster cluster, double rate) {
  cluster.intra_latency_us = cluster.inter_latency_us = cluster.launch_us = 0;
  cluster.attention.call_us = 0;
  cluster.intra_gbytes_per_s *= rate;
  cluster.inter_gbytes_per_s_per_node *= rate;
  cluster.attention_tflops *= rate;
  cluster.memory_gbytes_per_s *= rate;
  return cluster;
}

TEST(Simulate, ScalesWithTheClusterAndGainsFromEveryRate) {
  constexpr const char* kStrategies[] = {"ring", "zigzag", "all_gather", "magi", "dcp"};
  for (std::uint64_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const Cluster cluster = without_overheads(
        cluster_of("dgx-h100", static_cast<std::int32_t>(random_between(rng, 1, 3)),
                   static_cast<std::int32_t>(random_between(rng, 1, 4))),
        1);
    const Workload workload = batch_of(random_lengths(rng, 8, 4000), "causal");
    const Plan plan = plan_of(kStrategies[random_between(rng, 0, 4)], workload, cluster);
    const double base = simulate(plan, cluster).time_us();
    EXPECT_NEAR(simulate(plan, without_overheads(cluster, 3)).time_us(), base / 3, 1e-9 * base);
    Cluster wider = cluster;
    wider.intra_gbytes_per_s *= 2;
    wider.inter_gbytes_per_s_per_node *= 2;
    EXPECT_LE(simulate(plan, wider).time_us(), base * (1 + 1e-9));
    Cluster faster = cluster;
    faster.attention_tflops *= 2;
    EXPECT_LE(simulate(plan, faster).time_us(), base * (1 + 1e-9));
  }
}

TEST(Simulate, RefusesAClusterOfAnotherShape) {
  const Plan plan = plan_of("ring", batch_of({100}, "causal"), cluster_of("dgx-h100", 1, 2));
  EXPECT_THROW((void)simulate(plan, cluster_of("dgx-h100", 2, 1)), InvalidArgument);
}

}  // namespace
}  // namespace contextile
