// Even tokens for placements: no device above the cap, every tile where it was, plans that verify.
#include "planner/auto/token_leveling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/plan_build.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"
#include "planner/auto/placement.h"
#include "strategy/grid_placement.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

std::vector<std::int64_t> tokens_of_devices(const Placement& placement, const Cluster& cluster) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(cluster.num_devices()), 0);
  const Blocking& blocks = placement.priced->tiles.work.blocks;
  for (const BlockId b : IdRange<BlockId>(blocks.num_blocks())) {
    tokens[placement.partition.owner[b].index()] += blocks.num_tokens(b);
  }
  return tokens;
}

// Devices of the pairs of first tokens of two blocks: [first query, first key] → device.
std::map<std::pair<std::int64_t, std::int64_t>, Rank> devices_of_tiles(const Placement& placement) {
  std::map<std::pair<std::int64_t, std::int64_t>, Rank> devices;
  const TileGrid& tiles = placement.priced->tiles;
  const auto groups = static_cast<std::size_t>(placement.choice.head_groups);
  for (std::size_t t = 0; t < tiles.all_tiles.size(); ++t) {
    const Tile& tile = tiles.all_tiles[t];
    const std::int64_t query = tiles.work.blocks.ranges(tile.q_block).front().begin;
    const std::int64_t key = tiles.work.blocks.ranges(tile.kv_block).front().begin;
    devices[{query, key}] =
        placement.partition.device[TileId{static_cast<std::int32_t>(t * groups)}];
  }
  return devices;
}

TEST(TokenLeveling, GivesNoDeviceMoreThanTheCapAndLeavesTiles) {
  int leveled_ones = 0;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const Cluster cluster = cluster_of("p4de", static_cast<std::int32_t>(random_between(rng, 1, 3)),
                                       static_cast<std::int32_t>(random_between(rng, 1, 4)));
    const Workload workload =
        batch_of(random_lengths(rng, 6, 3000), seed % 2 == 0 ? "causal" : "lambda:16,200");
    PlacementChoice choice{.unit = seed % 3 == 0 ? PlacedUnit::kTiles : PlacedUnit::kRows,
                           .block_size = 256,
                           .head_groups = seed % 3 == 0 ? 2 : 1,
                           .seed = seed};
    const auto priced = std::make_shared<const PricedTiles>(price_tiles(
        workload, cluster,
        cut_into_tiles(workload, cut_sequences(workload, choice.block_size, BandCuts::kEdges)),
        choice.block_size, true, choice.unit == PlacedUnit::kRows));
    const Placement placement = place(workload, cluster, priced, choice, {});
    const std::int64_t devices = cluster.num_devices();
    const std::int64_t mean = (workload.num_tokens() + devices - 1) / devices;
    const auto leveled = level_tokens(workload, cluster, placement, {.cap = mean}, true);
    const std::vector<std::int64_t> before = tokens_of_devices(placement, cluster);
    ASSERT_EQ(leveled.has_value(), std::ranges::max(before) > mean);
    if (!leveled) continue;
    ++leveled_ones;
    const std::vector<std::int64_t> after = tokens_of_devices(*leveled, cluster);
    EXPECT_LE(std::ranges::max(after), mean);
    EXPECT_EQ(std::accumulate(after.begin(), after.end(), std::int64_t{0}), workload.num_tokens());
    // Only devices with room receive tokens.
    for (std::size_t d = 0; d < after.size(); ++d) {
      EXPECT_EQ(after[d]<before[d], before[d]> mean) << "device " << d;
    }
    const auto devices_after = devices_of_tiles(*leveled);
    for (const auto& [tile, device] : devices_of_tiles(placement)) {
      const auto found = devices_after.find(tile);
      if (found != devices_after.end()) {
        EXPECT_EQ(found->second, device);
      }
    }
    const SchedulePair schedules = {OverlapOptions{2, 1}, OverlapOptions{2, 1}};
    const Plan plan = build_plan(
        workload, cluster, arrange_placement(workload, cluster, *leveled, {}, schedules, false));
    const VerifyReport report = verify(plan);
    EXPECT_TRUE(report.ok()) << report.violations.front();
  }
  EXPECT_GT(leveled_ones, 12);
}

TEST(TokenLeveling, PrefersDevicesOfTheSameNode) {
  // Four blocks of 256 tokens on the first of four devices, whose node has two.
  const Cluster cluster = cluster_of("p4de", 2, 2);
  const Workload workload = batch_of({256, 256, 256, 256}, "causal");
  Placement placement;
  placement.choice.block_size = 256;
  placement.priced = std::make_shared<const PricedTiles>(price_tiles(
      workload, cluster, cut_into_tiles(workload, cut_sequences(workload, 256, BandCuts::kNone)),
      256, true));
  for (int b = 0; b < 4; ++b) placement.partition.owner.push_back(Rank{0});
  for (std::size_t t = 0; t < placement.priced->tiles.all_tiles.size(); ++t) {
    placement.partition.device.push_back(Rank{0});
  }
  const auto leveled = level_tokens(workload, cluster, placement, {.cap = 512}, true);
  ASSERT_TRUE(leveled);
  EXPECT_EQ(tokens_of_devices(*leveled, cluster), (std::vector<std::int64_t>{512, 512, 0, 0}));
  EXPECT_FALSE(level_tokens(workload, cluster, *leveled, {.cap = 512}, true));
}

}  // namespace
}  // namespace contextile
