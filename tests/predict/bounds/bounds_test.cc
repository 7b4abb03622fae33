// Lower bounds, compared with simulated plans and with results by hand.
#include "contextile/bounds.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

AttentionShape shape_of(std::int32_t q_heads, std::int32_t kv_heads) {
  AttentionShape shape;
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  return shape;
}

// Shares that grow, fall and jump like measured ones.
AttentionProfile random_profile(Rng& rng) {
  AttentionProfile profile = AttentionProfile::from_overheads(
      static_cast<double>(random_between(rng, 0, 800)),
      static_cast<double>(random_between(rng, 0, 20000)), 0.5 + 0.5 * rng.uniform());
  profile.kernel_tile_rows = random_between(rng, 0, 2) * 64;
  profile.call_us = random_chance(rng, 0.3) ? 0 : 20 * rng.uniform();
  if (random_chance(rng, 0.3)) return profile;
  profile.q_rows = {random_between(rng, 1, 64), 100, 700, 3000};
  profile.kv_rows = {random_between(rng, 1, 64), 200, 900};
  profile.forward.clear();
  profile.backward.clear();
  for (std::size_t i = 0; i < 12; ++i) {
    profile.forward.push_back(0.05 + rng.uniform());
    profile.backward.push_back(0.05 + rng.uniform());
  }
  return profile;
}

Cluster random_cluster(Rng& rng) {
  Cluster cluster = cluster_of("dgx-h100", static_cast<std::int32_t>(random_between(rng, 1, 3)),
                               static_cast<std::int32_t>(random_between(rng, 1, 8)));
  cluster.attention = random_profile(rng);
  // From ports that never matter to those that always do.
  cluster.intra_gbytes_per_s = std::pow(10, 3.5 * rng.uniform());
  cluster.inter_gbytes_per_s_per_node = std::pow(10, 3.5 * rng.uniform());
  cluster.nics_per_node = random_chance(rng, 0.5) ? cluster.devices_per_node : 1;
  cluster.rails = random_chance(rng, 0.2);
  if (random_chance(rng, 0.2)) {
    cluster.flow_gbytes_per_s = {{.nodes = 2, .gbytes_per_s = std::pow(10, 2 * rng.uniform())}};
  }
  cluster.launches = random_chance(rng, 0.2) ? LaunchOrder::kGrouped : LaunchOrder::kConcurrent;
  cluster.sm_fraction = random_chance(rng, 0.2) ? 0.3 * rng.uniform() : 0;
  cluster.transfer_compute_us_per_mb = random_chance(rng, 0.2) ? 100 * rng.uniform() : 0;
  cluster.launch_us = 10 * rng.uniform();
  cluster.intra_latency_us = 30 * rng.uniform();
  cluster.inter_latency_us = random_chance(rng, 0.2) ? 500 * rng.uniform() : 30 * rng.uniform();
  if (random_chance(rng, 0.2)) {
    cluster.compute_slots_per_node = 0.25 * static_cast<double>(random_between(rng, 1, 20));
  }
  return cluster;
}

struct Counts {
  std::map<std::string, int> bindings;
  int plans = 0;
  double closest = 1e300;  // least simulated / bound
};

void expect_below(const Plan& plan, const Workload& workload, const Cluster& cluster,
                  Counts& counts) {
  const Simulation simulation = simulate(plan, cluster);
  const BoundOptions options = bound_options_of(plan);
  for (const Direction direction : kDirections) {
    const auto& simulated =
        direction == Direction::kForward ? simulation.forward : simulation.backward;
    if (!simulated) continue;
    SCOPED_TRACE(to_string(direction));
    const TimeBound bound = lower_bound(workload, cluster, direction, options);
    EXPECT_LE(bound.compute_us, bound.time_us * (1 + 1e-12));
    EXPECT_LE(bound.communication_us, bound.time_us * (1 + 1e-12));
    EXPECT_LE(bound.latency_us, bound.time_us * (1 + 1e-12));
    EXPECT_LE(bound.separate_us, bound.time_us * (1 + 1e-12));
    EXPECT_LE(bound.joint_us, bound.time_us * (1 + 1e-12));
    EXPECT_GE(bound.joint_us, bound.compute_us);
    EXPECT_LE(std::max(bound.device_ports_us, bound.node_uplinks_us), bound.communication_us);
    ASSERT_LE(bound.time_us, simulated->time_us)
        << "compute " << bound.compute_us << ", device ports " << bound.device_ports_us
        << ", node uplinks " << bound.node_uplinks_us << ", latency " << bound.latency_us
        << ", joint " << bound.joint_us;
    ++counts.bindings[bound.binding];
    ++counts.plans;
    counts.closest = std::min(counts.closest, simulated->time_us / bound.time_us);
  }
}

// Batches from documents of a few tokens, whose plans are calls and latency, to long documents.
std::int64_t random_longest(Rng& rng) {
  constexpr std::int64_t kLongest[] = {40, 700, 6000};
  return kLongest[random_between(rng, 0, std::ssize(kLongest) - 1)];
}

Workload random_workload(Rng& rng) {
  const auto kv_heads = static_cast<std::int32_t>(1 << random_between(rng, 0, 3));
  AttentionShape shape =
      shape_of(kv_heads * static_cast<std::int32_t>(random_between(rng, 1, 4)), kv_heads);
  shape.head_dim = shape.value_dim = 64;
  shape.dtype = random_chance(rng, 0.3) ? Dtype::kF32 : Dtype::kBf16;
  const std::int64_t longest = random_longest(rng);
  std::vector<MaskUse> masks = {{.name = "first", .spec = random_mask_spec(rng, longest)}};
  if (random_chance(rng, 0.2)) {
    masks.push_back({.name = "second", .spec = random_mask_spec(rng, longest)});
  }
  Workload workload = make_workload(random_lengths(rng, 6, longest), shape, masks);
  const std::int64_t tokens = workload.num_tokens();
  if (random_chance(rng, 0.15) && tokens > 1) {  // a prefix that is cached
    const Range cached = {0, random_between(rng, 1, tokens - 1)};
    drop_queries(workload, {&cached, 1});
  }
  return workload;
}

// A strategy of the registry with one of the options that it finds worth trying, or none if that is
// not possible. Searches that simulate get only a few of the seeds.
std::optional<Plan> random_plan(Rng& rng, const Workload& workload, const Cluster& cluster) {
  const auto all = strategies();
  const Strategy& strategy = *all[static_cast<std::size_t>(
      random_between(rng, 0, static_cast<std::int64_t>(all.size()) - 1))];
  StrategyRequest request;
  if (strategy.name() == "auto") {
    request.options = {{"budget_ms", "1"}};
  } else {
    const auto variants = strategy.variants(workload, cluster, request);
    request.options = variants[static_cast<std::size_t>(
        random_between(rng, 0, static_cast<std::int64_t>(variants.size()) - 1))];
    request.block_size = random_between(rng, 1, 8) * (random_chance(rng, 0.5) ? 64 : 8);
  }
  if (random_chance(rng, 0.5)) request.wire = Dtype::kBf16;
  if (strategy.unsupported(workload, cluster, request)) return std::nullopt;
  return build_plan(workload, cluster, strategy.arrange(workload, cluster, request));
}

TEST(LowerBound, IsNeverAboveTheSimulatedTimeOfAnyStrategysPlan) {
  Counts counts;
  std::map<std::string, int> plans;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Rng rng(seed);
    const Cluster cluster = random_cluster(rng);
    Workload workload = random_workload(rng);
    if (random_chance(rng, 0.1)) {  // each device holds an equal share already
      const std::int64_t devices = cluster.num_devices();
      for (std::int64_t d = 0; d < devices; ++d) {
        const Range held = {workload.num_tokens() * d / devices,
                            workload.num_tokens() * (d + 1) / devices};
        if (!held.empty()) workload.home.push_back({held, Rank(static_cast<std::int32_t>(d))});
      }
    }
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const std::optional<Plan> plan = random_plan(rng, workload, cluster);
    if (!plan) continue;
    SCOPED_TRACE(plan->strategy);
    ++plans[plan->strategy];
    ASSERT_NO_FATAL_FAILURE(expect_below(*plan, workload, cluster, counts));
  }
  EXPECT_GT(counts.plans, 300);
  EXPECT_GE(plans.size(), 12U);
  EXPECT_LT(counts.closest, 1.02);
  for (const char* cause :
       {"compute", "device ports", "node uplinks", "latency", "compute and latency"}) {
    EXPECT_GE(counts.bindings[cause], 3) << cause;
  }
}

// Devices compute anything, anywhere: owners and devices of tiles are drawn at random, near where
// they were or not. Every input is fetched, and every partial result is returned at once.
Arrangement random_arrangement(Rng& rng, const Workload& workload, const Cluster& cluster) {
  Arrangement arrangement;
  arrangement.strategy = "random";
  arrangement.partial_wire = Dtype::kBf16;
  ArrangedRound& round = arrangement.rounds.emplace_back();
  // Small blocks, or few of each document.
  const std::int64_t few = (workload.num_tokens() + 7) / random_between(rng, 2, 8);
  const std::int64_t small = random_between(rng, 1, 8) * (workload.num_tokens() < 300 ? 4 : 50);
  round.blocks = cut_sequences(workload, random_chance(rng, 0.4) ? few : small);
  round.head_groups = random_chance(rng, 0.5) ? workload.shape.kv_heads : 1;
  const std::int64_t devices = cluster.num_devices();
  const std::int64_t blocks = round.blocks.num_blocks();
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t home =
        random_chance(rng, 0.1) ? random_between(rng, 0, devices - 1) : b * devices / blocks;
    round.owners.emplace_back(static_cast<std::int32_t>(home));
  }
  const double by_query = random_chance(rng, 0.4) ? 0 : rng.uniform();
  const double by_group = random_chance(rng, 0.4) ? 0 : rng.uniform();
  for (const NamedMask& named : workload.masks) {
    round.masks.push_back(named.mask);
    ArrangedMask& program = round.programs.emplace_back();
    for (auto* direction : {&program.forward, &program.backward}) {
      direction->emplace();
      const bool forward = direction == &program.forward;
      std::map<std::tuple<Kind, BlockId, GroupId, Rank>, bool> moved;
      for (const Tile& tile : TileIndex(named.mask, round.blocks).tiles()) {
        const Rank by_owner =
            round.owners[(random_chance(rng, by_query) ? tile.q_block : tile.kv_block).index()];
        for (std::int32_t g = 0; g < round.head_groups; ++g) {
          const Rank device = random_chance(rng, by_group)
                                  ? Rank{static_cast<std::int32_t>(g % devices)}
                                  : by_owner;
          (*direction)
              ->tiles.push_back({tile.q_block, tile.kv_block, GroupId{g}, device, 1, tile.pairs});
          for (const Kind kind :
               {Kind::kQ, Kind::kKv, Kind::kO, Kind::kDo, Kind::kDq, Kind::kDkv}) {
            if (!occurs_in(kind, forward ? Direction::kForward : Direction::kBackward)) continue;
            const BlockId block = is_of_kv(kind) ? tile.kv_block : tile.q_block;
            if (round.owners[block.index()] != device) moved[{kind, block, GroupId{g}, device}];
          }
        }
      }
      for (const auto& [key, ignored] : moved) {
        const auto& [kind, block, group, device] = key;
        const Rank owner = round.owners[block.index()];
        if (is_result(kind)) {
          (*direction)->transfers.push_back({kind, block, group, device, owner, 2, 3});
        } else {
          (*direction)->transfers.push_back({kind, block, group, owner, device, 0, 1});
        }
      }
    }
  }
  return arrangement;
}

TEST(LowerBound, IsNeverAboveTheSimulatedTimeOfRandomArrangements) {
  Counts counts;
  constexpr int kSeeds = 300;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    Rng rng(seed);
    const Cluster cluster = random_cluster(rng);
    const auto kv_heads = static_cast<std::int32_t>(1 << random_between(rng, 0, 2));
    AttentionShape shape = shape_of(2 * kv_heads, kv_heads);
    shape.head_dim = shape.value_dim = 64;
    const std::int64_t longest = std::min<std::int64_t>(3000, random_longest(rng));
    const MaskUse mask{.name = "mask", .spec = random_mask_spec(rng, longest)};
    const Workload workload = make_workload(random_lengths(rng, 4, longest), shape, {&mask, 1});
    SCOPED_TRACE(fmt::format("seed {}, {}", seed, to_string(mask.spec)));
    const Plan plan = build_plan(workload, cluster, random_arrangement(rng, workload, cluster));
    ASSERT_NO_FATAL_FAILURE(expect_below(plan, workload, cluster, counts));
  }
  EXPECT_EQ(counts.plans, 2 * kSeeds);
}

TEST(LowerBound, OfOneDeviceAndAFullDocumentIsItsKernelTime) {
  const Cluster cluster = cluster_of("dgx-h100", 1, 1);
  for (const std::int64_t length : {64, 500, 4096, 10000}) {
    const Workload workload = batch_of({length}, "full");
    for (const Direction direction : kDirections) {
      const double kernel_us = TileCosts(workload.shape, cluster)
                                   .piece_us(direction, length, length, length * length, 1);
      const TimeBound bound = lower_bound(workload, cluster, direction);
      EXPECT_NEAR(bound.time_us, cluster.attention.call_us + kernel_us, 1e-6 * bound.time_us);
      EXPECT_EQ(bound.communication_us, 0);
      EXPECT_EQ(bound.latency_us, 0);
      EXPECT_EQ(bound.binding, "compute");
    }
  }
}

TEST(LowerBound, OfOneDeviceAndCausalDocumentsIsCloseToTheirKernelTime) {
  for (const char* preset : {"p4de:1x1", "dgx-h200:1x1"}) {
    const Cluster cluster = load_cluster(preset);
    for (const std::int64_t length : {128, 1000, 3000, 20000}) {
      SCOPED_TRACE(fmt::format("{}, {}", preset, length));
      const Workload workload = batch_of(std::vector<std::int64_t>(40, length), "causal");
      const double kernel_us =
          TileCosts(workload.shape, cluster)
              .piece_us(Direction::kForward, length, length, length * (length + 1) / 2, 1);
      const TimeBound bound = lower_bound(workload, cluster, Direction::kForward);
      EXPECT_LE(bound.time_us, cluster.attention.call_us + 40 * kernel_us);
      EXPECT_GE(bound.time_us, 0.95 * (cluster.attention.call_us + 40 * kernel_us));
    }
  }
}

TEST(LowerBound, CountsTheSlotsThatDevicesShare) {
  Cluster cluster = cluster_of("dgx-h100", 1, 4);
  cluster.attention.call_us = 0;
  const Workload workload = batch_of({8000, 8000, 8000, 8000}, "causal");
  const double alone = lower_bound(workload, cluster, Direction::kForward).compute_us;
  cluster.compute_slots_per_node = 1;
  EXPECT_NEAR(lower_bound(workload, cluster, Direction::kForward).compute_us, 4 * alone,
              1e-6 * alone);
}

TEST(LowerBound, OfDocumentsThatFitIntoDevicesMovesNothing) {
  const Cluster cluster = cluster_of("dgx-h100", 1, 2);
  for (const Direction direction : kDirections) {
    const TimeBound bound = lower_bound(batch_of({16, 16}, "causal"), cluster, direction);
    EXPECT_EQ(bound.communication_us, 0);
    EXPECT_EQ(bound.latency_us, 0);
  }
}

TEST(LowerBound, OfADocumentThatNoDeviceMayOwnIsAMessageAtLeast) {
  Cluster cluster = cluster_of("dgx-h100", 1, 2);
  cluster.intra_latency_us = 50;  // longer than a call
  const Workload workload = batch_of({32}, "causal");
  const TimeBound bound =
      lower_bound(workload, cluster, Direction::kForward, {.max_owned_tokens = 16});
  EXPECT_NEAR(bound.latency_us,
              cluster.launch_us + cluster.intra_latency_us + cluster.attention.call_us, 1e-6);
  EXPECT_EQ(bound.binding, "latency");
  // One device may own it all: then no plan needs a message that takes as long as one device.
  const TimeBound whole =
      lower_bound(workload, cluster, Direction::kForward, {.max_owned_tokens = 32});
  EXPECT_LT(whole.latency_us, 1.02 * whole.compute_us);
}

// Each of two devices owns half of the document and a quarter of its pairs, and has to compute half
// of them. It launches, and waits for the other's part or calls twice.
TEST(LowerBound, OfALongDocumentThatDevicesShareHasALaunchAndALatencyBesideCompute) {
  Cluster cluster = cluster_of("dgx-h100", 1, 2);
  cluster.intra_gbytes_per_s = 900;  // no port is busier than a device computes
  const Workload workload = batch_of({20000}, "causal");
  for (const Direction direction : kDirections) {
    const auto lost_us = [&](std::int64_t owned) {
      const TimeBound bound =
          lower_bound(workload, cluster, direction, {.max_owned_tokens = owned});
      EXPECT_EQ(bound.time_us, bound.joint_us);
      return bound.joint_us - bound.compute_us;
    };
    const double both_us = cluster.launch_us + cluster.intra_latency_us;
    EXPECT_NEAR(lost_us(10000), both_us, 0.2);
    cluster.intra_latency_us = 100;  // longer than another call
    EXPECT_NEAR(lost_us(10000), cluster.launch_us + cluster.attention.call_us, 0.2);
    cluster.intra_latency_us = 7;
    // With 17500 tokens or all of them, one device computes half of the work alone, but takes part.
    EXPECT_NEAR(lost_us(17500), 0.5 * (cluster.launch_us + both_us), 0.2);
    EXPECT_NEAR(lost_us(20000), 0.5 * (cluster.launch_us + both_us), 0.2);
  }
}

TEST(LowerBound, OfDocumentsThatDevicesOwnWholeHasNothingBesideCompute) {
  const Cluster cluster = cluster_of("dgx-h100", 1, 4);
  const TimeBound bound =
      lower_bound(batch_of({4000, 4000, 4000, 4000}, "causal"), cluster, Direction::kForward);
  EXPECT_EQ(bound.joint_us, bound.compute_us);
  EXPECT_EQ(bound.binding, "compute");
}

// Two devices, each owns half of a full document. Each computes a quarter of the pairs with the
// tokens that it owns. The other half needs keys and values (512 bytes per token) or queries and
// outputs (516).
TEST(LowerBound, OfAFullDocumentOnTwoDevicesIsBetweenIsoperimetryAndAPlan) {
  Cluster cluster = cluster_of("dgx-h100", 1, 2);
  cluster.intra_gbytes_per_s = 1e-3;  // a byte a µs
  const std::int64_t length = 1000;
  const Workload workload = batch_of({length}, "full", shape_of(1, 1));
  const TimeBound forward =
      lower_bound(workload, cluster, Direction::kForward, {.max_owned_tokens = length / 2});
  // A plan: each fetches the other's 500 keys and values, through its own port.
  EXPECT_LE(forward.communication_us, 500 * 512.0 + 11);
  // With so slow ports the pairs may be shared out in any way. Isoperimetry allows one device its
  // own quarter only, and the other the rest as one rectangle, 500 + 366 queries by as many keys.
  const double rectangle = std::sqrt(0.75) * length - 500;
  EXPECT_LE(forward.communication_us, rectangle * (512 + 516) / 2 + 11);
  EXPECT_GE(forward.communication_us, 0.9 * rectangle * (512 + 516) / 2);
  EXPECT_EQ(forward.binding, "device ports");
  // Through the NICs of two nodes instead of the ports of two devices.
  Cluster nodes = cluster_of("dgx-h100", 2, 1);
  nodes.inter_gbytes_per_s_per_node = 1e-3;
  const TimeBound inter =
      lower_bound(workload, nodes, Direction::kForward, {.max_owned_tokens = length / 2});
  EXPECT_NEAR(inter.communication_us, forward.communication_us, 0.01 * forward.communication_us);
}

TEST(LowerBound, FallsWithLooserLimitsAndFasterMachines) {
  Cluster cluster = cluster_of("dgx-h100", 4, 2);
  cluster.intra_gbytes_per_s = 5;
  cluster.inter_gbytes_per_s_per_node = 5;
  const Workload workload = batch_of({30000, 7000, 500}, "causal");
  const auto time = [&](const BoundOptions& options) {
    return lower_bound(workload, cluster, Direction::kForward, options).communication_us;
  };
  EXPECT_GT(time({.max_owned_tokens = 4700}), time({.max_owned_tokens = 9000}));
  EXPECT_GT(time({.max_owned_tokens = 9000, .max_node_tokens = 9500}),
            time({.max_owned_tokens = 9000}));
  EXPECT_GE(time({.head_groups = 1}), time({}));
  EXPECT_GE(time({.partial_wire = Dtype::kF32}), time({.partial_wire = Dtype::kBf16}));
  cluster.inter_gbytes_per_s_per_node = 10;
  const double before = time({});
  cluster.inter_gbytes_per_s_per_node = 20;
  EXPECT_LT(time({}), before);
}

TEST(LowerBound, TakesOwnersFromTheHomeLayout) {
  const Cluster cluster = cluster_of("dgx-h100", 1, 2);
  Workload workload = batch_of({5000, 5000}, "causal");
  workload.home = {{{0, 9000}, Rank{0}}, {{9000, 10000}, Rank{1}}};
  EXPECT_GT(lower_bound(workload, cluster, Direction::kForward, {.max_owned_tokens = 5000})
                .communication_us,
            -1);
  const TimeBound lopsided = lower_bound(workload, cluster, Direction::kForward);
  EXPECT_EQ(lopsided.communication_us, 0);  // 9000 tokens would hold either document
  workload.home = {{{0, 2500}, Rank{0}}, {{2500, 7500}, Rank{1}}, {{7500, 10000}, Rank{0}}};
  EXPECT_GT(lower_bound(workload, cluster, Direction::kForward).compute_us, 0);
  workload.home = {{{0, 10000}, Rank{7}}};
  EXPECT_THROW(lower_bound(workload, cluster, Direction::kForward), InvalidArgument);
}

TEST(LowerBound, OfSeveralMasksIsTheSumAndOfAnEmptyOneNothing) {
  const Cluster cluster = cluster_of("dgx-h100", 2, 2);
  const MaskUse uses[] = {{.name = "a", .spec = parse_mask_spec("causal")},
                          {.name = "b", .spec = parse_mask_spec("sliding_window:100")}};
  const std::vector<std::int64_t> lengths = {9000, 400};
  const Workload both = make_workload(lengths, shape_of(8, 2), uses);
  double sum = 0;
  for (const MaskUse& use : uses) {
    sum += lower_bound(make_workload(lengths, shape_of(8, 2), {&use, 1}), cluster,
                       Direction::kBackward)
               .time_us;
  }
  EXPECT_NEAR(lower_bound(both, cluster, Direction::kBackward).time_us, sum, 1e-6 * sum);
  Workload empty = both;
  for (NamedMask& named : empty.masks) named.mask.bands.clear();
  EXPECT_EQ(lower_bound(empty, cluster, Direction::kForward).time_us, 0);
}

// A broken or hostile plan may have so many; one after another, they would take hours.
TEST(LowerBound, OfManyHeadGroupsIsFound) {
  Cluster cluster = cluster_of("dgx-h100", 2, 8);
  cluster.inter_gbytes_per_s_per_node = 1e-3;
  const TimeBound bound = lower_bound(batch_of({30000, 7000}, "causal", shape_of(1 << 20, 1 << 20)),
                                      cluster, Direction::kForward, {.max_owned_tokens = 2400});
  EXPECT_GT(bound.communication_us, 0);
}

TEST(LowerBound, RefusesLimitsThatNoPlanKeepsTo) {
  const Cluster cluster = cluster_of("dgx-h100", 2, 2);
  const Workload workload = batch_of({1000}, "causal");
  const auto bound = [&](const BoundOptions& options) {
    return lower_bound(workload, cluster, Direction::kForward, options);
  };
  EXPECT_THAT([&] { (void)bound({.max_owned_tokens = 249}); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("max_owned_tokens")));
  EXPECT_THROW((void)bound({.max_owned_tokens = 300, .max_node_tokens = 499}), InvalidArgument);
  EXPECT_THROW((void)bound({.head_groups = 3}), InvalidArgument);
  EXPECT_NO_THROW((void)bound({.max_owned_tokens = 250, .max_node_tokens = 500}));
}

}  // namespace
}  // namespace contextile
