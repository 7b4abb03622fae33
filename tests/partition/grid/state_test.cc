#include "partition/grid/state.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "partition/grid/anneal.h"
#include "partition/grid/refine.h"
#include "partition/grid/starts.h"
#include "partition/grid/support.h"

namespace contextile {
namespace {

const std::pair<std::int32_t, std::int32_t> kMachines[] = {{1, 4}, {4, 8},  {3, 5},
                                                           {8, 8}, {64, 1}, {1, 64}};

GridLimits limits_for(const GridLevel& level, std::int32_t devices) {
  GridLimits limits;
  limits.mean_work = static_cast<double>(level.total_work) / devices;
  limits.work_cap = 1.2;
  limits.token_cap = level.total_held_tokens / devices + 2048;
  limits.work_penalty = 1e8;
  limits.token_penalty = 1e9;
  return limits;
}

// Returns any of the ids 0 … size-1.
template <typename I>
I any_id(Rng& rng, std::int32_t size) {
  return I{static_cast<std::int32_t>(random_between(rng, 0, size - 1))};
}

Lane any_lane(Rng& rng, const LaneLayout& layout) {
  return layout.lane(any_id<Rank>(rng, layout.num_devices()));
}

GridState random_state(Rng& rng, const GridLevel& level, const LaneLayout& layout) {
  GridState state(level, layout, limits_for(level, layout.num_devices()));
  for (PackedLane& lane : state.place) lane = PackedLane(any_lane(rng, layout));
  for (PackedLane& lane : state.owner) lane = PackedLane(any_lane(rng, layout));
  state.rebuild();
  return state;
}

// Returns the same assignment with everything derived from scratch.
GridState recomputed(const GridState& state) {
  GridState copy = state;
  copy.rebuild();
  return copy;
}

TEST(LaneLayout, NumbersDevicesBothWaysAndCountsNodes) {
  for (const auto& [nodes, devices] : kMachines) {
    ASSERT_TRUE(LaneLayout::fits(nodes, devices));
    const LaneLayout layout(nodes, devices);
    for (const Rank d : IdRange<Rank>(layout.num_devices())) {
      EXPECT_EQ(layout.device(layout.lane(d)), d);
      EXPECT_EQ(layout.node(layout.lane(d)), NodeId{d.value / devices});
      EXPECT_EQ(layout.lane(NodeId{d.value / devices}, d.value % devices), layout.lane(d));
    }
    Rng rng(5);
    for (int trial = 0; trial < 200; ++trial) {
      LaneMask mask = 0;
      IdVector<NodeId, bool> seen(layout.node_ids());
      for (const Rank d : IdRange<Rank>(layout.num_devices())) {
        if (!random_chance(rng, 0.1)) continue;
        mask |= lane_bit(layout.lane(d));
        seen[NodeId{d.value / devices}] = true;
      }
      EXPECT_EQ(layout.count_nodes(mask), std::count(seen.begin(), seen.end(), true));
    }
  }
  EXPECT_FALSE(LaneLayout::fits(5, 16));
  EXPECT_FALSE(LaneLayout::fits(1, 65));
}

TEST(GridState, MovesKeepEverythingEqualToRecomputed) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const auto& [nodes, devices] = kMachines[random_between(rng, 0, 5)];
    const LaneLayout layout(nodes, devices);
    const GridLevel level = finest_level(random_grid(rng));
    GridState state = random_state(rng, level, layout);
    if (random_chance(rng, 0.5)) state.set_traffic_weight(0.1);
    for (int step = 0; step < 200; ++step) {
      const Lane to = any_lane(rng, layout);
      const std::int64_t before = state.cost;
      if (random_chance(rng, 0.7)) {
        const auto t = any_id<TileId>(rng, level.num_tiles());
        if (state.place[t] == to) continue;
        const std::int64_t delta = state.tile_delta(t, to);
        state.move_tile(t, to);
        ASSERT_EQ(state.cost, before + delta);
      } else {
        const auto b = any_id<BlockId>(rng, level.num_blocks());
        if (state.owner[b] == to) continue;
        const std::int64_t delta = state.owner_delta(b, to);
        state.move_owner(b, to);
        ASSERT_EQ(state.cost, before + delta);
      }
    }
    const GridState fresh = recomputed(state);
    EXPECT_EQ(state.cost, fresh.cost);
    EXPECT_EQ(state.load, fresh.load);
    EXPECT_EQ(state.tokens, fresh.tokens);
    for (const GridNetId net : level.nets()) {
      ASSERT_EQ(state.span(net), fresh.span(net));
    }
  }
}

TEST(GridState, TrafficStaysEqualToRecomputedUnderOneScale) {
  Rng rng(3);
  const LaneLayout layout(4, 8);
  const GridLevel level = finest_level(random_grid(rng));
  GridState state = random_state(rng, level, layout);
  state.set_traffic_weight(0.5);
  const GridState start = state;
  std::vector<std::pair<TileId, Lane>> undo;
  for (int step = 0; step < 300; ++step) {
    const auto t = any_id<TileId>(rng, level.num_tiles());
    undo.emplace_back(t, state.place[t]);
    state.move_tile(t, any_lane(rng, layout));
  }
  for (auto it = undo.rbegin(); it != undo.rend(); ++it) state.move_tile(it->first, it->second);
  EXPECT_EQ(state.cost, start.cost);
  EXPECT_NEAR(state.traffic_cost, start.traffic_cost, 1e-9 * start.traffic_cost);
}

TEST(Anneal, LowersTheEnergyAndLeavesAConsistentState) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const auto& [nodes, devices] = kMachines[random_between(rng, 0, 5)];
    const LaneLayout layout(nodes, devices);
    const GridLevel level = finest_level(random_grid(rng));
    GridState state = random_state(rng, level, layout);
    state.set_traffic_weight(0.1);
    const double before = state.energy();
    FastRandom random(seed);
    anneal(state, {20'000, level.mean_row_bytes() / 4, level.mean_row_bytes() / 100}, random);
    EXPECT_LT(state.energy(), before);
    const GridState fresh = recomputed(state);
    EXPECT_EQ(state.cost, fresh.cost);
    EXPECT_EQ(state.load, fresh.load);
    EXPECT_EQ(state.tokens, fresh.tokens);
  }
}

TEST(Anneal, NeverLeavesANodeWhenOnlyInsidesMayChange) {
  Rng rng(8);
  const LaneLayout layout(4, 8);
  const GridLevel level = finest_level(random_grid(rng));
  GridState state = random_state(rng, level, layout);
  const GridState start = state;
  state.reach = Reach::kInsides;
  FastRandom random(1);
  anneal(state, {20'000, level.mean_row_bytes(), level.mean_row_bytes() / 100}, random);
  EXPECT_NE(state.place, start.place);
  for (const TileId t : level.tiles.ids()) {
    ASSERT_EQ(layout.node(state.place[t]), layout.node(start.place[t]));
  }
  for (const BlockId b : level.blocks.ids()) {
    ASSERT_EQ(layout.node(state.owner[b]), layout.node(start.owner[b]));
  }
}

TEST(Refine, NeverRaisesTheCostOfAFeasibleState) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const LaneLayout layout(2, 4);
    const GridLevel level = finest_level(random_grid(rng));
    GridState state(level, layout, limits_for(level, 8));
    state.limits.work_cap = 100;
    start_contiguous(state);
    const std::int64_t before = state.cost;
    FastRandom random(seed);
    const std::int64_t gain = refine_tiles(state, random);
    EXPECT_GE(gain, 0);
    EXPECT_EQ(state.cost, before - gain);
  }
}

TEST(Coarsening, KeepsWorkTokensAndTheCostOfProjectedAssignments) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const auto levels = coarsen_all(finest_level(random_grid(rng)), 1e7, 0.5, 1 << 20);
    for (std::size_t l = 1; l < levels.size(); ++l) {
      EXPECT_EQ(levels[l].total_work, levels[0].total_work);
      EXPECT_EQ(levels[l].total_held_tokens, levels[0].total_held_tokens);
      EXPECT_LT(levels[l].num_blocks(), levels[l - 1].num_blocks());
      const LaneLayout layout(2, 4);
      const GridState coarse = random_state(rng, levels[l], layout);
      GridState fine(levels[l - 1], layout, limits_for(levels[l - 1], 8));
      for (const TileId t : fine.place.ids())
        fine.place[t] = coarse.place[levels[l].coarse_tile[t]];
      for (const BlockId b : fine.owner.ids()) {
        fine.owner[b] = coarse.owner[levels[l].coarse_block[b]];
      }
      fine.rebuild();
      EXPECT_EQ(fine.load, coarse.load);
      EXPECT_EQ(fine.tokens, coarse.tokens);
      EXPECT_LE(fine.cost, coarse.cost);  // a fine net may span less than the coarse one
    }
  }
}

}  // namespace
}  // namespace contextile
