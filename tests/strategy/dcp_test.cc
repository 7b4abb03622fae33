#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/planner.h"
#include "contextile/verify.h"
#include "support/batches.h"

namespace contextile {
namespace {

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
                                        {"share", "reached"},
                                        {"data_tolerance", "1"},
                                        {"head_groups", "1"},
                                        {"divisions", "2"},
                                        {"divisions", "7"},
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
  const PlanStats relayed =
      statistics(plan_of(workload, cluster_of(4, 4), request_with(1024, {{"relays", "on"}})));
  const PlanStats direct = statistics(plan_of(workload, cluster_of(4, 4), request_with(1024, {})));
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
  EXPECT_EQ(stats.token_overload, 0);  // 64 equal blocks on 16 devices
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

StrategyRequest hypergraph_request(std::int64_t block_size) {
  return request_with(block_size, {{"partitioner", "hypergraph"}});
}

TEST(DcpHypergraph, EveryTransferIsNeededAndEveryPlanValid) {
  for (const char* mask :
       {"causal", "lambda:64,1024", "causal_blockwise:256,2,1", "shared_question:0.2,4"}) {
    for (const auto& [nodes, devices] : {std::pair(1, 1), {1, 6}, {2, 4}, {3, 1}}) {
      SCOPED_TRACE(fmt::format("{} {}x{}", mask, nodes, devices));
      const Plan plan =
          plan_of(batch_of(kLengths, mask), cluster_of(nodes, devices), hypergraph_request(1024));
      const VerifyReport report = verify(plan);
      EXPECT_TRUE(report.ok()) << report.violations.front();
      EXPECT_EQ(report.movement[0].redundant_transfers, 0);
      EXPECT_EQ(report.movement[1].redundant_transfers, 0);
    }
  }
}

TEST(DcpHypergraph, KeepsEpsOfNodesAndOfDevicesInThem) {
  const Workload workload = batch_of({32768}, "causal");
  const Cluster cluster = cluster_of(2, 4);
  StrategyRequest request = hypergraph_request(1024);
  request.options["eps_node"] = "0.02";
  request.options["eps_device"] = "0.07";
  const PlanStats stats = statistics(plan_of(workload, cluster, request));
  double total = 0;
  std::vector<double> node_flops(2, 0);
  for (std::size_t d = 0; d < 8; ++d) {
    node_flops[d / 4] += stats.forward->devices[d].flops;
    total += stats.forward->devices[d].flops;
  }
  for (std::size_t d = 0; d < 8; ++d) {
    EXPECT_LE(node_flops[d / 4], 1.02 * total / 2 * (1 + 1e-9));
    EXPECT_LE(stats.forward->devices[d].flops, 1.07 * node_flops[d / 4] / 4 * (1 + 1e-9));
  }
  EXPECT_EQ(stats.token_overload, 0);  // 32 equal blocks on 8 devices
}

TEST(DcpHypergraph, PlansTheSameTwiceAndOtherwiseThanTheGrid) {
  const Workload workload = batch_of(kLengths, "lambda:64,1024");
  const auto exported = [&](const StrategyRequest& request) {
    std::ostringstream text;
    export_json(plan_of(workload, cluster_of(2, 4), request), text);
    return text.str();
  };
  const auto first = exported(hypergraph_request(1024));
  EXPECT_EQ(first, exported(hypergraph_request(1024)));
  EXPECT_NE(first, exported(request_with(1024, {})));
}

TEST(DcpHypergraph, IsNamedByItsPlansAsTheDefaultIs) {
  const Workload workload = batch_of({4096}, "causal");
  const auto options = [&](const StrategyRequest& request) {
    return find_strategy("dcp").arrange(workload, cluster_of(1, 2), request).options;
  };
  EXPECT_EQ(options(hypergraph_request(1024)).at("partitioner"), "hypergraph");
  EXPECT_EQ(options(request_with(1024, {})).at("partitioner"), "grid");
}

TEST(DcpHypergraph, LeavesTokensAtHome) {
  Workload workload = batch_of(kLengths, "causal");
  for (std::int32_t rank = 0; rank < 8; ++rank) {
    const std::int64_t tokens = workload.num_tokens();
    workload.home.push_back({{tokens * rank / 8, tokens * (rank + 1) / 8}, Rank{rank}});
  }
  const Plan plan = plan_of(workload, cluster_of(2, 4), hypergraph_request(1024));
  const VerifyReport report = verify(plan);
  EXPECT_TRUE(report.ok()) << report.violations.front();
}

TEST(DcpHypergraph, PlacesOnNodesThatAreTooLargeForTheGrid) {
  const Workload workload = batch_of({16384}, "causal");
  const auto reason = [&](const StrategyRequest& request) {
    return find_strategy("dcp").unsupported(workload, cluster_of(1, 72), request);
  };
  EXPECT_EQ(reason(request_with(1024, {})),
            "partitioner=grid places on at most 64 devices a node, found 72");
  EXPECT_EQ(reason(hypergraph_request(1024)), std::nullopt);
  EXPECT_TRUE(verify(plan_of(workload, cluster_of(1, 72), hypergraph_request(1024))).ok());
}

TEST(DcpHypergraph, SearchesTheSameBlocksAsTheGrid) {
  StrategyRequest request;
  const std::vector<std::int64_t> sizes = find_strategy("dcp").block_sizes(request);
  EXPECT_EQ(sizes.back(), 512);
  request.options["partitioner"] = "hypergraph";
  EXPECT_EQ(find_strategy("dcp").block_sizes(request), sizes);
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
