#include "partition/state.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "partition/anneal.h"
#include "partition/refine.h"
#include "partition/starts.h"
#include "partition/support.h"

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

GridState random_state(Rng& rng, const GridLevel& level, const LaneLayout& layout) {
  GridState state(level, layout, limits_for(level, layout.num_devices()));
  const auto any_lane = [&] {
    return static_cast<std::uint8_t>(
        layout.lane(static_cast<std::int32_t>(random_between(rng, 0, layout.num_devices() - 1))));
  };
  for (auto& lane : state.place) lane = any_lane();
  for (auto& lane : state.owner) lane = any_lane();
  state.rebuild();
  return state;
}

// The same assignment, everything derived from scratch.
GridState recomputed(const GridState& state) {
  GridState copy = state;
  copy.rebuild();
  return copy;
}

TEST(LaneLayout, NumbersDevicesBothWaysAndCountsNodes) {
  for (const auto& [nodes, devices] : kMachines) {
    ASSERT_TRUE(LaneLayout::fits(nodes, devices));
    const LaneLayout layout(nodes, devices);
    for (std::int32_t d = 0; d < layout.num_devices(); ++d) {
      EXPECT_EQ(layout.device(layout.lane(d)), d);
      EXPECT_EQ(layout.node(layout.lane(d)), d / devices);
    }
    Rng rng(5);
    for (int trial = 0; trial < 200; ++trial) {
      LaneMask mask = 0;
      std::vector<bool> seen(static_cast<std::size_t>(nodes));
      for (std::int32_t d = 0; d < layout.num_devices(); ++d) {
        if (!random_chance(rng, 0.1)) continue;
        mask |= lane_bit(layout.lane(d));
        seen[static_cast<std::size_t>(d / devices)] = true;
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
      const Lane to =
          layout.lane(static_cast<std::int32_t>(random_between(rng, 0, layout.num_devices() - 1)));
      const std::int64_t before = state.cost;
      if (random_chance(rng, 0.7)) {
        const auto t = static_cast<std::int32_t>(random_between(rng, 0, level.num_tiles() - 1));
        if (state.place[static_cast<std::size_t>(t)] == to) continue;
        const std::int64_t delta = state.tile_delta(t, to);
        state.move_tile(t, to);
        ASSERT_EQ(state.cost, before + delta);
      } else {
        const auto b = static_cast<std::int32_t>(random_between(rng, 0, level.num_blocks() - 1));
        if (state.owner[static_cast<std::size_t>(b)] == to) continue;
        const std::int64_t delta = state.owner_delta(b, to);
        state.move_owner(b, to);
        ASSERT_EQ(state.cost, before + delta);
      }
    }
    const GridState fresh = recomputed(state);
    EXPECT_EQ(state.cost, fresh.cost);
    EXPECT_EQ(state.load, fresh.load);
    EXPECT_EQ(state.tokens, fresh.tokens);
    for (std::int32_t net = 0; net < level.num_nets(); ++net) {
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
  std::vector<std::pair<std::int32_t, Lane>> undo;
  for (int step = 0; step < 300; ++step) {
    const auto t = static_cast<std::int32_t>(random_between(rng, 0, level.num_tiles() - 1));
    undo.emplace_back(t, state.place[static_cast<std::size_t>(t)]);
    state.move_tile(t, layout.lane(static_cast<std::int32_t>(random_between(rng, 0, 31))));
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
  for (std::size_t t = 0; t < state.place.size(); ++t) {
    ASSERT_EQ(layout.node(state.place[t]), layout.node(start.place[t]));
  }
  for (std::size_t b = 0; b < state.owner.size(); ++b) {
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
      for (std::size_t t = 0; t < fine.place.size(); ++t) {
        fine.place[t] = coarse.place[static_cast<std::size_t>(levels[l].coarse_tile[t])];
      }
      for (std::size_t b = 0; b < fine.owner.size(); ++b) {
        fine.owner[b] = coarse.owner[static_cast<std::size_t>(levels[l].coarse_block[b])];
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
