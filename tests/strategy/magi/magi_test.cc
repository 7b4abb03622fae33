#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "contextile/plan.h"
#include "contextile/plan_build.h"
#include "contextile/plan_stats.h"
#include "contextile/registry.h"
#include "contextile/strategy.h"
#include "contextile/verify.h"

namespace contextile {
namespace {

Cluster cluster_of(std::int32_t devices) {
  Cluster cluster;
  cluster.devices_per_node = devices;
  return cluster;
}

TEST(Magi, GivesEveryRankEquallyManyChunks) {
  const Workload workload =
      make_workload(std::vector<std::int64_t>{5000, 300, 2900}, {}, std::vector<MaskUse>(1));
  StrategyRequest request;
  request.options["chunk"] = "100";
  const Arrangement arrangement = find_strategy("magi").arrange(workload, cluster_of(8), request);
  std::map<Rank, int> chunks;
  for (const Rank owner : arrangement.rounds[0].owners) ++chunks[owner];
  ASSERT_EQ(chunks.size(), 8U);
  for (const auto& [rank, count] : chunks) {
    EXPECT_GE(count, 10);
    EXPECT_LE(count, 11);  // ceil(82 / 8)
  }
}

TEST(Magi, BalancesAreasOfLongCausalSequences) {
  const Workload workload =
      make_workload(std::vector<std::int64_t>{32768}, {}, std::vector<MaskUse>(1));
  const Plan plan = build_plan(workload, cluster_of(8),
                               find_strategy("magi").arrange(workload, cluster_of(8), {}));
  EXPECT_LT(statistics(plan).forward->compute_imbalance, 0.02);
}

TEST(Magi, SendsExactlyTheNeededKeysOncePerRank) {
  MaskUse mask;
  mask.spec.rule = MaskSpec::Rule::kLambda;
  mask.spec.sink = 10;
  mask.spec.window = 200;
  const Workload workload = make_workload(std::vector<std::int64_t>{3000, 1200}, {}, {&mask, 1});
  StrategyRequest request;
  request.block_size = 64;
  const Arrangement arrangement = find_strategy("magi").arrange(workload, cluster_of(6), request);
  const ArrangedRound& round = arrangement.rounds[0];
  std::set<std::pair<BlockId, Rank>> needed;
  for (const PlacedTile& tile : round.programs[0].forward->tiles) {
    if (round.owners[tile.kv_block.index()] != tile.device)
      needed.insert({tile.kv_block, tile.device});
  }
  std::set<std::pair<BlockId, Rank>> sent;
  for (const Transfer& t : round.programs[0].forward->transfers) {
    EXPECT_EQ(t.kind, Kind::kKv);
    EXPECT_TRUE(sent.insert({t.block, t.dst}).second);
  }
  EXPECT_EQ(sent, needed);
  const Plan plan = build_plan(workload, cluster_of(6), arrangement);
  const VerifyReport report = verify(plan);
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.movement[0].redundant_transfers, 0);
  EXPECT_EQ(report.movement[1].redundant_transfers, 0);
}

TEST(Magi, StagesSplitRemoteKeysEvenly) {
  const Workload workload =
      make_workload(std::vector<std::int64_t>{16384}, {}, std::vector<MaskUse>(1));
  StrategyRequest request;
  request.options["stages"] = "3";
  const Arrangement arrangement = find_strategy("magi").arrange(workload, cluster_of(4), request);
  std::map<std::pair<Rank, std::int32_t>, int> per_stage;
  for (const Transfer& t : arrangement.rounds[0].programs[0].forward->transfers) {
    EXPECT_EQ(t.need_stage, t.launch_stage + 1);
    ++per_stage[{t.dst, t.need_stage}];
  }
  std::map<Rank, std::pair<int, int>> extremes;
  for (const auto& [key, count] : per_stage) {
    EXPECT_GE(key.second, 1);
    EXPECT_LE(key.second, 3);
    auto& [low, high] = extremes.try_emplace(key.first, count, count).first->second;
    low = std::min(low, count);
    high = std::max(high, count);
  }
  for (const auto& [rank, range] : extremes) EXPECT_LE(range.second - range.first, 1);
}

}  // namespace
}  // namespace contextile
