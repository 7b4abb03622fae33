// The A x P family moves the same data as its originals: bytes against their published formulas.
#include "strategy/axp/axp.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/verify.h"

namespace contextile {
namespace {

struct Planned {
  Plan plan;
  PlanStats stats;
  VerifyReport report;
};

Cluster cluster_of(std::int32_t nodes, std::int32_t devices_per_node) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = devices_per_node;
  return cluster;
}

Planned plan_with(const std::string& strategy, const std::vector<std::int64_t>& lengths,
                  const MaskUse& mask, const Cluster& cluster, const AttentionShape& shape = {},
                  const StrategyRequest& request = {}) {
  const Workload workload = make_workload(lengths, shape, {&mask, 1});
  const Arrangement arrangement = find_strategy(strategy).arrange(workload, cluster, request);
  Planned planned;
  planned.plan = build_plan(workload, cluster, arrangement);
  planned.stats = statistics(planned.plan);
  planned.report = verify(planned.plan);
  EXPECT_TRUE(planned.report.ok()) << planned.report.violations.front();
  EXPECT_TRUE(planned.report.grouped_launches_ok);
  return planned;
}

MaskUse causal() { return {}; }

constexpr std::int64_t kElement = 2;  // bf16
constexpr std::int64_t kTokens = 4096;

TEST(Wires, AreF32WhereAResultWouldBeRoundedOften) {
  // A ring's accumulator travels through all ranks; results that are gathered directly move once.
  const auto wire = [](const std::string& strategy, std::int32_t ranks,
                       const std::map<std::string, std::string>& options = {},
                       std::int32_t max_roundings = PlanOptions().max_roundings) {
    StrategyRequest request;
    request.options = options;
    request.max_roundings = max_roundings;
    return plan_with(strategy, {4096}, causal(), cluster_of(1, ranks), {}, request)
        .plan.partial_wire;
  };
  for (const char* strategy : {"zigzag", "all_gather"}) {
    EXPECT_EQ(wire(strategy, 4), Dtype::kBf16) << strategy;
    EXPECT_EQ(wire(strategy, 8), Dtype::kF32) << strategy;
    EXPECT_EQ(wire(strategy, 8, {}, 7), Dtype::kBf16) << strategy;
    EXPECT_EQ(wire(strategy, 8, {}, 6), Dtype::kF32) << strategy;
    EXPECT_EQ(wire(strategy, 32, {}, kAnyRoundings), Dtype::kBf16) << strategy;
  }
  EXPECT_EQ(wire("all_gather", 32, {{"algorithm", "direct"}}), Dtype::kBf16);
}

TEST(Zigzag, MovesTheRingsBytes) {
  const std::int32_t ranks = 8;
  const AttentionShape shape;
  StrategyRequest original;
  original.max_roundings = kAnyRoundings;
  const auto planned = plan_with("zigzag", {kTokens / 2, kTokens / 4, kTokens / 4}, causal(),
                                 cluster_of(1, ranks), shape, original);
  const std::int64_t local = kTokens / ranks;
  const std::int64_t forward = (ranks - 1) * 2 * local * shape.kv_heads * shape.head_dim * kElement;
  for (const DeviceStats& device : planned.stats.forward->devices) {
    EXPECT_EQ(device.sent_bytes, forward);
    EXPECT_EQ(device.received_bytes, forward);
  }
  for (const DeviceStats& device : planned.stats.backward->devices) {
    EXPECT_EQ(device.sent_bytes, 2 * forward);  // dKV in the activation dtype travels along with KV
    EXPECT_EQ(device.received_bytes, 2 * forward);
  }
  EXPECT_LT(planned.stats.forward->compute_imbalance, 1e-2);
  EXPECT_LT(planned.stats.backward->compute_imbalance, 1e-2);
}

TEST(Zigzag, WiderWireMovesWiderGradients) {
  StrategyRequest request;
  request.wire = Dtype::kF32;
  const auto narrow = plan_with("zigzag", {kTokens}, causal(), cluster_of(1, 4));
  const auto wide = plan_with("zigzag", {kTokens}, causal(), cluster_of(1, 4), {}, request);
  const auto dkv = static_cast<std::size_t>(Kind::kDkv);
  EXPECT_EQ(wide.stats.backward->bytes_by_kind[dkv], 2 * narrow.stats.backward->bytes_by_kind[dkv]);
}

TEST(Ring, LeavesTheLastRankMostOfTheCausalWork) {
  const auto planned = plan_with("ring", {kTokens}, causal(), cluster_of(1, 8));
  // The last rank has (2R-1)/R of the mean.
  EXPECT_NEAR(planned.stats.forward->compute_overload, 7.0 / 8, 0.01);
}

TEST(Ring, EveryBlockMovesRoundTheRingThoughFewNeedIt) {
  // A question of 3 blocks and answers of 5, 4 and 4 on 4 devices with 4 blocks each: of the ring's
  // 48 block transfers 10 are needed (DCP, Fig. 7).
  MaskUse mask;
  mask.spec.rule = MaskSpec::Rule::kSharedQuestion;
  mask.spec.lengths = {3 * 16, 5 * 16, 4 * 16, 4 * 16};
  StrategyRequest request;
  request.block_size = 16;
  const auto planned = plan_with("ring", {256}, mask, cluster_of(1, 4), {}, request);
  EXPECT_EQ(planned.report.movement[0].transfers, 48);
  EXPECT_EQ(planned.report.movement[0].redundant_transfers, 38);
}

TEST(Ulysses, MovesHeadsInAndFinishedOutputsOut) {
  const std::int32_t ranks = 8;
  AttentionShape shape;  // 32 query heads, 8 KV heads
  const auto planned = plan_with("ulysses", {kTokens}, causal(), cluster_of(1, ranks), shape);
  const std::int64_t local = kTokens / ranks;
  const std::int64_t away = local * (ranks - 1) / ranks;  // tokens times heads that leave
  const std::int64_t q = away * shape.q_heads * shape.head_dim * kElement;
  const std::int64_t kv = away * shape.kv_heads * 2 * shape.head_dim * kElement;
  const std::int64_t lse = away * shape.q_heads * 4;
  for (const DeviceStats& device : planned.stats.forward->devices) {
    EXPECT_EQ(device.sent_bytes, q + kv + q + lse);  // Q, K, V in; O with its LSE out
  }
  for (const DeviceStats& device : planned.stats.backward->devices) {
    EXPECT_EQ(device.sent_bytes, q + 2 * lse + q + kv);  // dO in; dQ, dK, dV out; Q, K, V retained
  }
  EXPECT_EQ(planned.stats.forward->compute_imbalance, 0);
  EXPECT_EQ(planned.stats.forward->retained_bytes,
            (kTokens - local) * (shape.q_heads / ranks + 2 * shape.kv_heads / ranks) *
                shape.head_dim * kElement);
}

// Sixteen ranks hold eight KV heads twice: keys go to both replicas, queries to one of them. Every
// other rank gets one head of a rank's keys, and the gradients of replicas are added at home.
TEST(Ulysses, ReplicatesKvHeadsOnMoreRanks) {
  AttentionShape shape;  // 32 query heads, 8 KV heads
  for (const std::int32_t kv_heads : {8, 2, 1}) {
    shape.kv_heads = kv_heads;
    const std::int32_t ranks = 16;
    const auto planned = plan_with("ulysses", {kTokens}, causal(), cluster_of(2, 8), shape);
    EXPECT_EQ(planned.plan.rounds[0].head_groups, kv_heads);
    const std::int64_t local = kTokens / ranks;
    const std::int64_t of_queries = local * (kv_heads - 1) / kv_heads * shape.q_heads;
    const std::int64_t q = of_queries * shape.head_dim * kElement;
    const std::int64_t lse = of_queries * 4;
    const std::int64_t kv = local * (ranks - 1) * 2 * shape.head_dim * kElement;
    for (const DeviceStats& device : planned.stats.forward->devices) {
      EXPECT_EQ(device.sent_bytes, q + kv + q + lse);
    }
    for (const DeviceStats& device : planned.stats.backward->devices) {
      EXPECT_EQ(device.sent_bytes, q + 2 * lse + q + kv);
    }
    EXPECT_LT(planned.stats.forward->compute_imbalance, 1e-2);
    EXPECT_LT(planned.stats.backward->compute_imbalance, 1e-2);
  }
}

TEST(Ulysses, ReplicasHaveEvenWorkWhereRanksDoNot) {
  StrategyRequest request;
  request.options["layout"] = "contiguous";
  const auto planned = plan_with("ulysses", {kTokens}, causal(), cluster_of(2, 8), {}, request);
  EXPECT_LT(planned.stats.forward->compute_overload, 0.07);
}

TEST(Ulysses, RefusesRanksThatAreNoMultipleOfTheKvHeads) {
  const Workload workload =
      make_workload(std::vector<std::int64_t>{64}, {}, std::vector<MaskUse>(1));
  const auto reason = find_strategy("ulysses").unsupported(workload, cluster_of(2, 6), {});
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("a multiple of the KV heads (8), found 12"), std::string::npos) << *reason;
  EXPECT_THROW(static_cast<void>(find_strategy("ulysses").arrange(workload, cluster_of(2, 6), {})),
               InvalidArgument);
}

TEST(Hybrid, AddsAllToAllAndRing) {
  const AttentionShape shape;
  StrategyRequest request;
  request.options["head_parallel"] = "4";
  const auto planned = plan_with("hybrid", {kTokens}, causal(), cluster_of(2, 8), shape, request);
  const std::int64_t a = 4;
  const std::int64_t p = 4;
  const std::int64_t local = kTokens / 16;
  const std::int64_t away = local * (a - 1) / a;
  const std::int64_t all_to_all =
      away *
      ((2 * shape.q_heads + 2 * shape.kv_heads) * shape.head_dim * kElement + shape.q_heads * 4);
  const std::int64_t ring =
      (p - 1) * 2 * (local * a) * (shape.kv_heads / a) * shape.head_dim * kElement;
  for (const DeviceStats& device : planned.stats.forward->devices) {
    EXPECT_EQ(device.sent_bytes, all_to_all + ring);
  }
}

TEST(Hybrid, SplitsHeadsInsideANodeByDefault) {
  AttentionShape shape;
  shape.kv_heads = 4;
  const auto planned = plan_with("hybrid", {kTokens}, causal(), cluster_of(2, 8), shape);
  EXPECT_EQ(planned.plan.options.at("head_parallel"), "4");
  EXPECT_EQ(planned.plan.rounds[0].head_groups, 4);
}

// Over all ranks it would be ulysses.
TEST(Hybrid, TriesEveryNumberOfRanksBetweenOneAndAll) {
  AttentionShape shape;
  shape.kv_heads = 8;
  const MaskUse use = causal();
  const Workload workload = make_workload(std::vector<std::int64_t>{kTokens}, shape, {&use, 1});
  std::vector<std::string> tried;
  for (const auto& options : find_strategy("hybrid").variants(workload, cluster_of(2, 4), {})) {
    tried.push_back(options.contains("head_parallel") ? options.at("head_parallel") : "default");
  }
  EXPECT_EQ(tried, (std::vector<std::string>{"default", "2"}));
}

TEST(AllGather, RingCrossesANodeBoundaryOncePerNode) {
  const AttentionShape shape;
  StrategyRequest direct;
  direct.options["algorithm"] = "direct";
  const auto ring = plan_with("all_gather", {kTokens}, causal(), cluster_of(2, 4), shape);
  const auto straight =
      plan_with("all_gather", {kTokens}, causal(), cluster_of(2, 4), shape, direct);
  EXPECT_EQ(ring.stats.forward->total_bytes(), straight.stats.forward->total_bytes());
  const std::int64_t all_kv = kTokens * shape.kv_heads * 2 * shape.head_dim * kElement;
  EXPECT_EQ(straight.stats.forward->inter_bytes, 4 * all_kv);  // 4 devices on the other node
  EXPECT_EQ(ring.stats.forward->inter_bytes,
            2 * all_kv * 7 / 8);  // two edges, each all but one share
}

TEST(AllGather, NestedRingsLeaveNodesByEveryDevice) {
  const AttentionShape shape;
  StrategyRequest nested;
  nested.options["algorithm"] = "nested";
  for (const auto& [nodes, devices] : {std::pair{2, 4}, {4, 2}, {3, 3}, {1, 4}, {3, 1}}) {
    SCOPED_TRACE(fmt::format("{} x {}", nodes, devices));
    const Cluster cluster = cluster_of(nodes, devices);
    const std::int64_t tokens = 128 * cluster.num_devices();  // as many for each rank
    const MaskUse full = parse_mask_use("full");
    const auto ring = plan_with("all_gather", {tokens}, full, cluster, shape);
    const auto every = plan_with("all_gather", {tokens}, full, cluster, shape, nested);
    const std::int64_t all_kv = tokens * shape.kv_heads * 2 * shape.head_dim * kElement;
    EXPECT_EQ(every.stats.forward->inter_bytes, (nodes - 1) * all_kv);
    EXPECT_EQ(every.stats.forward->total_bytes(), ring.stats.forward->total_bytes());
    // Gradients are rounded on fewer hops, so that some may travel as bf16 instead of fp32.
    EXPECT_LE(every.stats.backward->total_bytes(), ring.stats.backward->total_bytes());
    for (const auto* direction : {&*every.stats.forward, &*every.stats.backward}) {
      for (const DeviceStats& device : direction->devices) {
        EXPECT_EQ(device.inter_sent_bytes * cluster.num_devices(), direction->inter_bytes);
      }
    }
    // Hops are left out if no rank before them computes a share. The rest still gets home.
    static_cast<void>(plan_with("all_gather", {tokens, 70, 9}, causal(), cluster, shape, nested));
    static_cast<void>(plan_with("wlb", {tokens, 70, 9}, causal(), cluster, shape, nested));
  }
}

TEST(AllGather, HoldsAllKeysOfTheBatch) {
  const AttentionShape shape;
  const auto planned = plan_with("all_gather", {kTokens}, causal(), cluster_of(1, 4), shape);
  const std::int64_t remote = kTokens * 3 / 4;
  EXPECT_EQ(planned.plan.rounds[0].devices[0].programs[0].forward->arena_tokens(Kind::kKv), remote);
}

TEST(Axp, BlockSizeCutsARanksShareAndMovesTheSameBytes) {
  StrategyRequest request;
  request.block_size = 100;
  const auto whole = plan_with("zigzag", {1500, 900}, causal(), cluster_of(1, 4));
  const auto cut = plan_with("zigzag", {1500, 900}, causal(), cluster_of(1, 4), {}, request);
  EXPECT_EQ(whole.plan.rounds[0].blocks.num_blocks(), 4);
  EXPECT_GE(cut.plan.rounds[0].blocks.num_blocks(), 24);
  EXPECT_EQ(cut.stats.forward->total_bytes(), whole.stats.forward->total_bytes());
}

TEST(Axp, PaddingFactorsCountWholeChunks) {
  const Workload workload =
      make_workload(std::vector<std::int64_t>{10, 7}, {}, std::vector<MaskUse>(1));
  const PaddingFactors factors = padding_factors(workload, TokenLayout::kZigzag, 2);
  EXPECT_DOUBLE_EQ(factors.tokens, 20.0 / 17);  // 12 + 8
  EXPECT_DOUBLE_EQ(factors.pairs, (78.0 + 36.0) / (55.0 + 28.0));
  EXPECT_DOUBLE_EQ(padding_factors(workload, TokenLayout::kPerDocument, 2).tokens, 1);
}

// TransformerEngine's ring sums the outputs of its P steps at the end of forward.
TEST(Axp, StashedCountsAPartialOutputOfEveryRingStep) {
  for (const char* mask : {"causal", "full", "sliding_window:700", "lambda:64,512"}) {
    for (const std::int32_t a : {1, 2, 4, 8}) {
      for (const auto& lengths : {std::vector<std::int64_t>{8192}, {5000, 300, 2701, 64}}) {
        SCOPED_TRACE(fmt::format("{}, A = {}, {} sequences", mask, a, lengths.size()));
        const AttentionShape shape{.q_heads = 16, .kv_heads = 8, .head_dim = 64, .value_dim = 48};
        const auto planned_with = [&](const char* stashed) {
          StrategyRequest request;
          request.options["count_stashed"] = stashed;
          if (a > 1) request.options["head_parallel"] = fmt::format("{}", a);
          return plan_with(a == 1 ? "zigzag" : "hybrid", lengths, parse_mask_use(mask),
                           cluster_of(2, 4), shape, request);
        };
        const auto [plan, without, report] = planned_with("off");
        const auto [same, with, same_report] = planned_with("on");
        EXPECT_EQ(plan.rounds[0].devices, same.rounds[0].devices);
        EXPECT_EQ(with.backward->peak_memory_bytes, without.backward->peak_memory_bytes);
        const std::int32_t p = 8 / a;
        for (std::int32_t r = 0; r < 8; ++r) {
          std::int64_t tokens = 0;  // of the position
          for (std::int32_t i = 0; i < a; ++i) {
            tokens += plan.rounds[0].owned_tokens(Rank{r / a * a + i});
          }
          const std::int64_t expected = p == 1 ? 0 : p * tokens * (16 / a) * (48 * 2 + 4);
          const auto d = static_cast<std::size_t>(r);
          EXPECT_EQ(
              with.forward->devices[d].memory_bytes - without.forward->devices[d].memory_bytes,
              expected);
        }
      }
    }
  }
}

}  // namespace
}  // namespace contextile
