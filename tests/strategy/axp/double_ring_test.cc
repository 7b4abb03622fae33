#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/verify.h"
#include "strategy/axp/axp_presets.h"
#include "support/batches.h"

namespace contextile {
namespace {

Plan plan_of(const Strategy& strategy, const Workload& workload, const Cluster& cluster,
             const StrategyRequest& request) {
  return build_plan(workload, cluster, strategy.arrange(workload, cluster, request));
}

TEST(DoubleRing, MovesTheRingsBytesAndFewerOfThemBetweenNodes) {
  const std::int64_t tokens = 6144;
  const AttentionShape shape;
  const std::int64_t kv = shape.kv_heads * 2 * shape.head_dim * 2;  // bytes of a token, bf16
  const Workload workload = default_batch_of({tokens / 2, tokens / 2});
  const Cluster cluster = cluster_of(3, 4);
  // Number of times that shares cross a node boundary: a plain ring crosses three edges in each of
  // 11 steps; rings inside nodes send every share to two other nodes.
  for (const auto& [inner, crossings] :
       std::map<std::string, std::int64_t>{{"12", 11 * 3}, {"4", 2 * 12}, {"1", 11 * 3}}) {
    SCOPED_TRACE("inner " + inner);
    const PlanStats stats = statistics(
        plan_of(double_ring_strategy(), workload, cluster, request_with({{"inner_ring", inner}})));
    for (const DeviceStats& device : stats.forward->devices) {
      EXPECT_EQ(device.sent_bytes, 11 * (tokens / 12) * kv);
    }
    EXPECT_EQ(stats.forward->inter_bytes, crossings * (tokens / 12) * kv);
    EXPECT_LT(stats.forward->compute_imbalance, 0.01);
    EXPECT_LT(stats.backward->compute_imbalance, 0.01);
  }
}

TEST(DoubleRing, OfOneRingIsZigzag) {
  const Workload workload = default_batch_of({900, 333, 2000});
  const Cluster cluster = cluster_of(2, 3);
  StrategyRequest request = request_with({{"inner_ring", "6"}});
  request.wire = Dtype::kBf16;
  Arrangement nested = double_ring_strategy().arrange(workload, cluster, request);
  StrategyRequest original;
  original.max_roundings = kAnyRoundings;
  const Arrangement plain = zigzag_strategy().arrange(workload, cluster, original);
  nested.strategy = plain.strategy;
  nested.options = plain.options;
  EXPECT_EQ(build_plan(workload, cluster, nested).digest,
            build_plan(workload, cluster, plain).digest);
}

TEST(DoubleRing, FillsANodeByDefault) {
  const Workload workload = default_batch_of({4096});
  const Plan plain = plan_of(double_ring_strategy(), workload, cluster_of(2, 8), {});
  EXPECT_EQ(plain.options.at("inner_ring"), "8");
  EXPECT_EQ(plain.options.at("head_parallel"), "1");
  const Plan heads = plan_of(double_ring_strategy(), workload, cluster_of(2, 8),
                             request_with({{"head_parallel", "4"}}));
  EXPECT_EQ(heads.options.at("inner_ring"), "2");
  EXPECT_EQ(heads.rounds[0].head_groups, 4);
  const Plan chosen = plan_of(double_ring_strategy(), workload, cluster_of(2, 8),
                              request_with({{"head_parallel", "0"}}));
  EXPECT_EQ(chosen.options.at("head_parallel"), "8");
}

TEST(DoubleRing, PlansAreValidForEveryInnerRingAndHeadSplit) {
  for (const char* mask : {"causal", "full", "lambda:16,100", "shared_question:0.2,4"}) {
    const Workload workload = default_batch_of({700, 45, 1200, 3}, mask);
    for (const std::int32_t devices : {1, 2, 3, 5, 6, 8, 12}) {
      for (const std::int32_t heads : {1, 2, 4}) {
        for (std::int32_t inner = 1; inner <= devices; ++inner) {
          SCOPED_TRACE(
              fmt::format("{}: {} devices, {} heads, inner {}", mask, devices, heads, inner));
          const Cluster cluster = cluster_of(1, devices);
          StrategyRequest request = request_with(
              {{"inner_ring", std::to_string(inner)}, {"head_parallel", std::to_string(heads)}});
          request.block_size = 64;
          const bool fits = devices % heads == 0 && devices / heads % inner == 0;
          EXPECT_EQ(double_ring_strategy().unsupported(workload, cluster, request).has_value(),
                    !fits);
          if (!fits) continue;
          const VerifyReport report =
              verify(plan_of(double_ring_strategy(), workload, cluster, request));
          EXPECT_TRUE(report.ok()) << report.violations.front();
          EXPECT_TRUE(report.grouped_launches_ok);
        }
      }
    }
  }
}

TEST(DoubleRing, SaysWhichInnerRingsItCannotNest) {
  const auto reason = double_ring_strategy().unsupported(default_batch_of({64}), cluster_of(1, 6),
                                                         request_with({{"inner_ring", "4"}}));
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("divisor of 6 positions, found 4"), std::string::npos) << *reason;
}

}  // namespace
}  // namespace contextile
