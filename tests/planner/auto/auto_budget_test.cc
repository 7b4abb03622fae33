// `auto` within limits of steps and time, and where a batch leaves it little to choose.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/model.h"
#include "contextile/data.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"
#include "planner/auto/arrangement_load.h"
#include "planner/auto/auto_support.h"
#include "planner/auto/placement_choices.h"
#include "planner/auto/search.h"
#include "planner/auto/search_state.h"
#include "planner/timed_block_size.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

TEST(Auto, ABudgetStillGivesAValidPlan) {
  StrategyRequest request;
  request.options["budget_ms"] = "1";
  const Plan plan =
      auto_plan(batch_of({9000, 300, 20000, 70}, "causal"), cluster_of("dgx-h200", 2, 4), request);
  EXPECT_TRUE(verify(plan).ok());
}

TEST(Auto, AStepLimitGivesTheSameValidPlanEveryTime) {
  const Workload workload = batch_of({9000, 300, 20000, 70}, "causal");
  const Cluster cluster = cluster_of("dgx-h200", 2, 4);
  std::int64_t tried = 0;
  for (const char* steps : {"1", "30000", "300000", "0"}) {
    SCOPED_TRACE(steps);
    StrategyRequest request;
    request.options["steps"] = steps;
    const Plan plan = auto_plan(workload, cluster, request);
    EXPECT_TRUE(verify(plan).ok());
    EXPECT_EQ(plan.digest, auto_plan(workload, cluster, request).digest);
    EXPECT_GT(std::stoll(plan.options.at("tried")), tried);
    tried = std::stoll(plan.options.at("tried"));
  }
}

// If tiles did not count, every other strategy would fit. The last 256 rows attend all keys, the
// others about 640. A device, or node, that had those rows whole would fetch everything.
TEST(Auto, FewStepsGoIntoTilesWhereAFewRowsAttendFarMoreThanOthers) {
  const Cluster cluster = cluster_of("dgx-h200", 4, 8);
  const Workload workload = batch_of({131'072}, "causal_blockwise:256,2,1");
  StrategyRequest request;
  request.options["steps"] = "50000";
  const Plan few = auto_plan(workload, cluster, request);
  EXPECT_EQ(few.options.at("chosen.of"), "tiles");
  EXPECT_TRUE(verify(few).ok());
  request.options["steps"] = "1000000";
  EXPECT_LE(simulate(few, cluster).time_us(),
            1.5 * simulate(auto_plan(workload, cluster, request), cluster).time_us());
}

TEST(Auto, FewStepsComeNearTheBestStrategyThatDecidesByRule) {
  const Cluster cluster = cluster_of("dgx-h200", 4, 8);
  Workload workload = batch_of({131'072}, "causal");
  workload.shape.q_heads = workload.shape.kv_heads = 32;
  StrategyRequest request;
  request.options["steps"] = "50000";
  const double ours = simulate(auto_plan(workload, cluster, request), cluster).time_us();
  double best = std::numeric_limits<double>::infinity();
  for (const Strategy* strategy : strategies()) {
    if (strategy->deciding() != Deciding::kByRule) continue;
    StrategyRequest other;
    if (strategy->unsupported(workload, cluster, other)) continue;
    best = std::min(
        best, simulate(build_plan(workload, cluster, strategy->arrange(workload, cluster, other)),
                       cluster)
                  .time_us());
  }
  EXPECT_LE(ours, 1.05 * best);
}

// The bounds of the other strategies show that none can win. Their simulations cost nothing, and
// half of the steps go into placements.
TEST(Auto, StrategiesThatCannotWinLeaveStepsToPlacements) {
  const Cluster cluster = cluster_of("dgx-h200", 4, 8);
  const Workload workload =
      batch_of({37'933, 20'000, 17'067, 9000, 8000, 16'000, 3000, 2000, 12'000, 6072}, "causal");
  StrategyRequest request;
  request.options["steps"] = "300000";
  EXPECT_GE(std::stoll(auto_plan(workload, cluster, request).options.at("tried")), 20);
}

// Over slow links, 32 KV heads on 32 devices: tiles of single heads spread evenly without splitting
// documents.
TEST(Auto, PlacesTilesOfSingleKvHeads) {
  const Cluster cluster = with_shared_uplinks(2);
  Workload workload = batch_of({14'000, 2384}, "causal");
  workload.shape.q_heads = workload.shape.kv_heads = 32;
  StrategyRequest request;
  request.options["candidates"] = "own";
  const Plan plan = auto_plan(workload, cluster, request);
  EXPECT_TRUE(verify(plan).ok());
  EXPECT_EQ(plan.options.at("chosen.of"), "tiles");
  EXPECT_EQ(plan.options.at("chosen.head_groups"), "32");
}

TEST(BuildPlan, LeavesOutTheDigestWhereThatIsAskedFor) {
  const Cluster cluster = cluster_of("local", 1, 4);
  const Workload workload = batch_of({900, 300}, "causal");
  const Arrangement arrangement = find_strategy("zigzag").arrange(workload, cluster, {});
  Plan plan = build_plan(workload, cluster, arrangement, {.digest = false});
  EXPECT_EQ(plan.digest, 0U);
  EXPECT_NE(build_plan(workload, cluster, arrangement).digest, 0U);
}

TEST(Auto, StepsCountTheTilesOfTheBlocksThatWereAskedFor) {
  StrategyRequest request;
  request.block_size = 16;
  request.options["steps"] = "200000";
  const Plan plan = auto_plan(batch_of({8192}, "causal"), cluster_of("dgx-h200", 2, 4), request);
  EXPECT_LE(std::stoll(plan.options.at("tried")), 3);
}

TEST(Auto, TriesOnePlanWhereNoneFitsItsSteps) {
  StrategyRequest request;
  request.options["steps"] = "1";
  for (const char* candidates : {"all", "own"}) {
    request.options["candidates"] = candidates;
    const Plan plan =
        auto_plan(batch_of({9000, 300}, "causal"), cluster_of("dgx-h200", 2, 4), request);
    EXPECT_EQ(plan.options.at("tried"), "1") << candidates;
  }
}

// Rows are numbered with 16 bits.
TEST(Auto, PlansMoreDocumentsThanRowsCanBePlaced) {
  StrategyRequest request;
  request.options["steps"] = "1";
  const std::vector<std::int64_t> lengths(70'000, 1);
  const Plan plan = auto_plan(batch_of(lengths, "causal"), cluster_of("dgx-h200", 1, 4), request);
  EXPECT_TRUE(verify(plan).ok());
}

TEST(Auto, RefusesMemoryThatNothingFits) {
  Cluster cluster = cluster_of("dgx-h200", 1, 2);
  cluster.memory_bytes = 1000;
  EXPECT_THROW((void)auto_plan(batch_of({4000}, "causal"), cluster, {}), InvalidArgument);
}

TEST(Auto, ForwardOnlyPlansHaveNoBackward) {
  StrategyRequest request;
  request.backward = false;
  const Plan plan = auto_plan(batch_of({9000, 300}, "causal"), cluster_of("p4de", 1, 4), request);
  EXPECT_TRUE(verify(plan).ok());
  EXPECT_FALSE(statistics(plan).backward);
}

}  // namespace
}  // namespace contextile
