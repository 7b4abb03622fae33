#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "contextile/plan.h"
#include "contextile/plan_build.h"
#include "contextile/plan_stats.h"
#include "contextile/registry.h"
#include "contextile/strategy.h"
#include "contextile/verify.h"

namespace contextile {
namespace {

Cluster cluster_of(std::int32_t nodes, std::int32_t devices) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = devices;
  return cluster;
}

Workload batch_of(const std::vector<std::int64_t>& lengths, const std::string& mask) {
  const MaskUse use = parse_mask_use(mask);
  AttentionShape shape;
  shape.q_heads = 8;
  shape.kv_heads = 2;
  return make_workload(lengths, shape, {&use, 1});
}

Plan plan_of(const Workload& workload, const Cluster& cluster, const StrategyRequest& request) {
  return build_plan(workload, cluster, find_strategy("dcp").arrange(workload, cluster, request));
}

StrategyRequest request_with(
    std::int64_t block_size,
    std::initializer_list<std::pair<const std::string, std::string>> options) {
  StrategyRequest request;
  request.block_size = block_size;
  request.options = options;
  return request;
}

const std::vector<std::int64_t> kLengths = {9000, 300, 2500, 120, 4100, 16000, 70, 1900};

TEST(Dcp, EveryTransferIsNeededAndEveryPlanValid) {
  for (const char* mask :
       {"causal", "lambda:64,1024", "causal_blockwise:256,2,1", "shared_question:0.2,4"}) {
    for (const auto& [option, value] : {std::pair("relays", "on"),
                                        {"relays", "off"},
                                        {"results", "early"},
                                        {"head_groups", "1"},
                                        {"T", "2"},
                                        {"T", "7"},
                                        {"cuts", "edges"}}) {
      SCOPED_TRACE(fmt::format("{} {}={}", mask, option, value));
      const Plan plan =
          plan_of(batch_of(kLengths, mask), cluster_of(2, 4), request_with(512, {{option, value}}));
      const VerifyReport report = verify(plan);
      EXPECT_TRUE(report.ok()) << report.violations.front();
      EXPECT_TRUE(report.grouped_launches_ok);
      EXPECT_EQ(report.movement[0].redundant_transfers, 0);
      EXPECT_EQ(report.movement[1].redundant_transfers, 0);
    }
  }
}

TEST(Dcp, RelaysCrossNodesLessAndMoveTheSameInAll) {
  const Workload workload = batch_of({32768}, "causal");
  const PlanStats relayed = statistics(plan_of(workload, cluster_of(4, 4), request_with(1024, {})));
  const PlanStats direct =
      statistics(plan_of(workload, cluster_of(4, 4), request_with(1024, {{"relays", "off"}})));
  EXPECT_LT(relayed.forward->inter_bytes, direct.forward->inter_bytes);
  EXPECT_LT(relayed.backward->inter_bytes, direct.backward->inter_bytes);
  EXPECT_EQ(relayed.forward->total_bytes(), direct.forward->total_bytes());
}

TEST(Dcp, KeepsEpsAndBalancesData) {
  const Workload workload = batch_of({65536}, "causal");
  const PlanStats stats =
      statistics(plan_of(workload, cluster_of(4, 4),
                         request_with(1024, {{"eps_node", "0.02"}, {"eps_device", "0.07"}})));
  EXPECT_LE(stats.forward->compute_overload, 1.02 * 1.07 - 1 + 1e-6);
  EXPECT_LE(stats.token_overload, 1024.0 / 4096 + 1e-9);  // one block above perfect
}

TEST(Dcp, MovesLessThanAStaticRing) {
  const Workload workload = batch_of(kLengths, "lambda:64,1024");
  const PlanStats dcp = statistics(plan_of(workload, cluster_of(2, 4), request_with(512, {})));
  const PlanStats ring = statistics(build_plan(
      workload, cluster_of(2, 4), find_strategy("zigzag").arrange(workload, cluster_of(2, 4), {})));
  EXPECT_LT(4 * dcp.forward->total_bytes(), ring.forward->total_bytes());
  EXPECT_LT(4 * dcp.backward->total_bytes(), ring.backward->total_bytes());
}

TEST(Dcp, CutsAtBandEdgesMoveLess) {
  for (const char* mask : {"lambda:64,1024", "causal_blockwise:256,2,1"}) {
    SCOPED_TRACE(mask);
    const Workload workload = batch_of({32768}, mask);
    const Plan even = plan_of(workload, cluster_of(2, 4), request_with(1024, {}));
    const Plan edges = plan_of(workload, cluster_of(2, 4), request_with(1024, {{"cuts", "edges"}}));
    EXPECT_TRUE(verify(edges).ok());
    EXPECT_LT(statistics(edges).forward->total_bytes(), statistics(even).forward->total_bytes());
  }
}

TEST(Dcp, SaysWhichHeadGroupsItCannotMake) {
  StrategyRequest request;
  request.options["head_groups"] = "3";
  const auto reason =
      find_strategy("dcp").unsupported(batch_of({100}, "causal"), cluster_of(1, 2), request);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("divisor of 2 KV heads"), std::string::npos);
}

}  // namespace
}  // namespace contextile
