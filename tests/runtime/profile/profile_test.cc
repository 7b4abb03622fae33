// Measuring this machine: the contents of a profile, whatever the machine's speed.
#include "contextile/advanced/profile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/extend/kernel.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "runtime/profile/link_measurement.h"
#include "runtime/profile/timed_ranks.h"
#include "runtime/profile/transfer_bench.h"

namespace contextile {
namespace {

ProfileOptions quickest(std::int32_t ranks) {
  return {.kernel = "reference",
          .ranks = ranks,
          .shape = {.q_heads = 2, .kv_heads = 1, .head_dim = 8, .value_dim = 8},
          .effort = ProfileEffort::kQuick};
}

TEST(SecondsPerCall, EveryRankMakesTheSameCalls) {
  std::vector<std::atomic<std::int64_t>> calls(3);
  const double seconds =
      seconds_per_call(3, {.sample_s = 1e-4, .samples = 2}, [&](Transport& transport) {
        std::atomic<std::int64_t>& mine = calls[transport.rank().index()];
        return std::function<void()>([&mine] { ++mine; });
      });
  EXPECT_GT(seconds, 0);
  // One to warm up, and one a sample at least; the first may fill a sample on a busy machine.
  EXPECT_GE(calls[0], 3);
  EXPECT_EQ(calls[1], calls[0]);
  EXPECT_EQ(calls[2], calls[0]);
}

TEST(SecondsPerCall, RethrowsWhatARankThrows) {
  EXPECT_THROW((void)seconds_per_call(2, {.sample_s = 1e-4, .samples = 1},
                                      [](Transport& transport) {
                                        const bool fails = transport.rank().value == 1;
                                        return std::function<void()>([fails] {
                                          if (fails) throw std::runtime_error("broken");
                                        });
                                      }),
               std::runtime_error);
}

TEST(MeasureMachine, HoldsAValidClusterAndEverySample) {
  for (const std::int32_t ranks : {1, 3}) {
    SCOPED_TRACE(ranks);
    const ProfileOptions options = quickest(ranks);
    std::int64_t steps = 0;
    const MachineProfile machine = measure_machine(options, [&](std::string_view what) {
      EXPECT_FALSE(what.empty());
      ++steps;
    });
    EXPECT_GT(steps, 0);
    EXPECT_LE(steps, profile_steps(options));
    EXPECT_EQ(machine.kernel, "reference");
    const Cluster& cluster = machine.cluster;
    EXPECT_NO_THROW(check_cluster(cluster));
    EXPECT_EQ(cluster.num_devices(), ranks);
    EXPECT_LE(cluster.compute_slots(), ranks);
    EXPECT_GE(cluster.compute_slots(), 1);
    const AttentionProfile& profile = cluster.attention;
    ASSERT_EQ(machine.kernel_samples.size(), profile.q_rows.size() * profile.kv_rows.size());
    std::size_t i = 0;
    for (const std::int64_t rows : profile.q_rows) {
      for (const std::int64_t keys : profile.kv_rows) {
        EXPECT_EQ(machine.kernel_samples[i].q_rows, rows);
        EXPECT_EQ(machine.kernel_samples[i].kv_rows, keys);
        EXPECT_GE(machine.kernel_samples[i].tiles, 1);
        EXPECT_GT(machine.kernel_samples[i].forward_s, 0);
        EXPECT_GT(machine.kernel_samples[i++].backward_s, 0);
      }
    }
    EXPECT_EQ(*std::ranges::max_element(profile.forward), 1);
    EXPECT_EQ(machine.transfers.back().ranks, std::max(ranks, 2));
    EXPECT_EQ(parse_cluster_json(to_json(cluster), "profile").attention, profile);
  }
}

TEST(MeasureMachine, PredictsTheProfiledCalls) {
  // On the grid, the profile equals the measurement, with all ranks at once.
  const ProfileOptions options = quickest(2);
  const MachineProfile machine = measure_machine(options);
  const Cluster& cluster = machine.cluster;
  const TileCosts costs(options.shape, cluster);
  const double shared = 2 / cluster.compute_slots();  // both ranks slow each other down so much
  for (const KernelSample& sample : machine.kernel_samples) {
    SCOPED_TRACE(testing::Message() << sample.q_rows << " x " << sample.kv_rows);
    const double tile_us = costs.piece_us(Direction::kForward, sample.q_rows, sample.kv_rows,
                                          sample.q_rows * sample.kv_rows, 1);
    const double call_us =
        shared * (cluster.attention.call_us + tile_us * static_cast<double>(sample.tiles));
    // A tile counts at least a tenth of its call, even if the call's own cost seems to be all.
    EXPECT_GE(call_us, 1e6 * sample.forward_s * 0.999);
    EXPECT_LE(call_us, 1e6 * sample.forward_s * 1.001 + shared * cluster.attention.call_us);
  }
}

TEST(MeasureMachine, ItsClusterIsOneToPlanAndSimulateOn) {
  const MachineProfile machine = measure_machine(quickest(3));
  const std::vector<std::int64_t> lengths = {90, 7, 40};
  const MaskUse use = parse_mask_use("causal");
  const Workload workload = make_workload(lengths, quickest(3).shape, {&use, 1});
  const Plan plan = build_plan(workload, machine.cluster,
                               find_strategy("zigzag").arrange(workload, machine.cluster, {}));
  const Simulation simulation = simulate(plan, machine.cluster);
  EXPECT_GT(simulation.forward->time_us, 0);
  EXPECT_LE(simulation.forward->mfu, 1);
}

// Threads act as processes here: a group of them measures like a group of processes.
std::vector<MachineProfile> measured_by_group(const ProfileOptions& options) {
  std::vector<MachineProfile> profiles(static_cast<std::size_t>(options.ranks));
  run_inproc(options.ranks, [&](Transport& rank) {
    profiles[rank.rank().index()] = measure_machine(options, rank);
  });
  return profiles;
}

TEST(MeasureMachineOfAGroup, HasTheSameProfileOnEveryRank) {
  ProfileOptions options = quickest(4);
  for (const std::int32_t nodes : {0, 2, 1}) {
    SCOPED_TRACE(nodes);
    options.nodes = nodes;
    const std::vector<MachineProfile> profiles = measured_by_group(options);
    const Cluster& cluster = profiles[0].cluster;
    EXPECT_NO_THROW(check_cluster(cluster));
    EXPECT_EQ(cluster.nodes, nodes == 0 ? 4 : nodes);
    EXPECT_EQ(cluster.num_devices(), 4);
    EXPECT_GT(cluster.inter_gbytes_per_s_per_node, 0);
    EXPECT_LT(cluster.sm_fraction, 1);
    for (const MachineProfile& profile : profiles) {
      EXPECT_EQ(to_json(profile.cluster), to_json(cluster));
    }
    EXPECT_EQ(profiles[0].busy.size(), 2U);
    std::set<TransferPattern> patterns;
    for (const TransferSample& sample : profiles[0].transfers) {
      EXPECT_GT(sample.seconds, 0);
      EXPECT_EQ(sample.ranks, 4);
      patterns.insert(sample.pattern);
    }
    EXPECT_EQ(patterns.count(TransferPattern::kRing), nodes == 0 ? 0U : 1U);
    EXPECT_EQ(patterns.count(TransferPattern::kNodeRing), nodes == 1 ? 0U : 1U);
    EXPECT_EQ(patterns.count(TransferPattern::kAllToAll), 1U);
  }
}

TEST(MeasureMachineOfAGroup, RefusesAGroupOfAnotherSize) {
  run_inproc(2, [&](Transport& rank) {
    EXPECT_THROW((void)measure_machine(quickest(3), rank), InvalidArgument);
  });
  ProfileOptions options = quickest(4);
  options.nodes = 3;
  EXPECT_THROW(check_profile_options(options), InvalidArgument);
}

TEST(TransferBench, EveryPatternMovesWhatItSays) {
  const std::int64_t bytes = 100;
  for (const auto& [pattern, expected] :
       {std::pair(TransferPattern::kRing, std::vector<std::int64_t>{1, 1, 1, 1, 1, 1}),
        std::pair(TransferPattern::kNodeRing, std::vector<std::int64_t>{1, 1, 1, 1, 1, 1}),
        std::pair(TransferPattern::kPairs, std::vector<std::int64_t>{1, 0, 1, 0, 1, 0}),
        std::pair(TransferPattern::kIncast, std::vector<std::int64_t>{0, 1, 1, 1, 1, 1}),
        std::pair(TransferPattern::kAllToAll, std::vector<std::int64_t>{5, 5, 5, 5, 5, 5})}) {
    SCOPED_TRACE(to_string(pattern));
    run_inproc(6, [&](Transport& rank) {
      TransferBench bench(rank, pattern, 6, 3, bytes);
      bench.exchange(2);
      EXPECT_EQ(rank.sent_bytes(), 2 * bytes * expected[rank.rank().index()]);
    });
  }
}

TEST(LinkRate, IsThatOfTheLargestMessages) {
  const std::vector<TransferSample> samples = {
      {2, 64, 101e-6}, {2, 1'000'000, 1100e-6}, {2, 4'000'000, 5100e-6}};
  const LinkRate rate = link_rate_of(samples, 1e-6);
  EXPECT_DOUBLE_EQ(rate.latency_s, 100e-6);
  EXPECT_DOUBLE_EQ(rate.gbytes_per_s, 1);  // the first million; the rest came slower
}

TEST(StolenCompute, TellsTimeAndBytesApart) {
  // A tenth of 20 ms and 500 µs per MB of 4 MB each way.
  const BusySample both{TransferPattern::kNodeRing, 4'000'000, 0.1, 0.1 + 0.002 + 0.004};
  const BusySample one{TransferPattern::kPairs, 4'000'000, 0.1, 0.1 + 0.002 + 0.002};
  const StolenCompute stolen = stolen_compute(both, one, 0.02);
  EXPECT_NEAR(stolen.share, 0.1, 1e-9);
  EXPECT_NEAR(stolen.us_per_mb, 500, 1e-6);
  // Nothing lost, or as much by one way as by both.
  EXPECT_EQ(stolen_compute({TransferPattern::kNodeRing, 1, 1, 0.9}, one, 0.02).share, 0);
  EXPECT_EQ(stolen_compute(both, {TransferPattern::kPairs, 4'000'000, 0.1, 1}, 0.02).us_per_mb, 0);
}

TEST(MeasureMachine, RefusesBadOptions) {
  const auto refuses = [](auto change) {
    ProfileOptions options = quickest(2);
    change(options);
    EXPECT_THROW(check_profile_options(options), InvalidArgument);
    EXPECT_THROW((void)measure_machine(options), InvalidArgument);
  };
  refuses([](ProfileOptions& o) { o.ranks = 0; });
  refuses([](ProfileOptions& o) { o.ranks = 257; });
  refuses([](ProfileOptions& o) { o.kernel = "none"; });
  refuses([](ProfileOptions& o) { o.shape.kv_heads = 3; });
  refuses([](ProfileOptions& o) { o.shape.head_dim = 0; });
}

}  // namespace
}  // namespace contextile
