#include "strategy/schedule/route_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "contextile/base.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

// Blocks owned by devices round-robin, on nodes of two devices, with random tiles.
struct RandomProblem {
  Blocking blocks;
  std::vector<Rank> owners;
  std::vector<PlacedTile> tiles;
  ScheduleProblem problem;

  RandomProblem(std::uint64_t seed, Direction direction) {
    constexpr std::int32_t kBlocks = 7;
    constexpr std::int32_t kDevices = 6;
    Rng rng(seed);
    for (std::int32_t b = 0; b < kBlocks; ++b) {
      blocks.add(Range{b * 10, (b + 1) * 10});
      owners.emplace_back(b % kDevices);
    }
    for (int t = 0; t < 60; ++t) {
      const auto any = [&](std::int64_t end) {
        return static_cast<std::int32_t>(random_between(rng, 0, end - 1));
      };
      tiles.push_back({BlockId{any(kBlocks)}, BlockId{any(kBlocks)}, GroupId{any(2)},
                       Rank{any(kDevices)}, 0, 100});
    }
    Cluster cluster;
    cluster.nodes = 3;
    cluster.devices_per_node = 2;
    problem = schedule_problem(
        {}, cluster, {.blocks = blocks, .owners = owners, .tiles = tiles, .head_groups = 2},
        direction);
  }

  // Finds the route by looking through all of them.
  [[nodiscard]] std::size_t scan(Kind kind, BlockId block, GroupId group, Rank device) const {
    for (std::size_t r = 0; r < problem.routes.size(); ++r) {
      const UnitRoute& route = problem.routes[r];
      if (route.kind == kind && route.block == block && route.group == group &&
          route.device == device) {
        return r;
      }
    }
    return kNoRoute;
  }
};

void expect_finds_all(const RandomProblem& random) {
  const RouteIndex index(random.problem);
  for (int k = 0; k < kNumKinds; ++k) {
    for (const BlockId b : IdRange<BlockId>(random.blocks.num_blocks())) {
      for (const GroupId g : IdRange<GroupId>(2)) {
        for (const Rank d : IdRange<Rank>(6)) {
          EXPECT_EQ(index.find(static_cast<Kind>(k), b, g, d),
                    random.scan(static_cast<Kind>(k), b, g, d));
        }
      }
    }
  }
}

TEST(RouteIndex, FindsEveryRouteInWhateverOrderTheyCome) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    RandomProblem random(seed, seed % 2 == 0 ? Direction::kForward : Direction::kBackward);
    ASSERT_FALSE(random.problem.routes.empty());
    expect_finds_all(random);
    Rng rng(seed);
    for (std::size_t r = random.problem.routes.size() - 1; r > 0; --r) {
      std::swap(random.problem.routes[r],
                random.problem.routes[static_cast<std::size_t>(
                    random_between(rng, 0, static_cast<std::int64_t>(r)))]);
    }
    expect_finds_all(random);
  }
}

TEST(RouteIndex, KnowsTheRoutesOfEveryTilesInputsAndResults) {
  for (const Direction direction : kDirections) {
    const RandomProblem random(3, direction);
    const RouteIndex index(random.problem);
    const bool forward = direction == Direction::kForward;
    const std::vector<Kind> inputs =
        forward ? std::vector{Kind::kQ, Kind::kKv} : std::vector{Kind::kQ, Kind::kKv, Kind::kDo};
    const std::vector<Kind> results =
        forward ? std::vector{Kind::kO} : std::vector{Kind::kDq, Kind::kDkv};
    for (std::size_t t = 0; t < random.tiles.size(); ++t) {
      const PlacedTile& tile = random.tiles[t];
      for (const bool of_results : {false, true}) {
        std::vector<std::size_t> expected;
        for (const Kind kind : of_results ? results : inputs) {
          const BlockId block = is_of_kv(kind) ? tile.kv_block : tile.q_block;
          const std::size_t r = random.scan(kind, block, tile.group, tile.device);
          if (r != kNoRoute) expected.push_back(r);
        }
        std::vector<std::size_t> found;
        index.for_each(t, of_results, [&](std::size_t r) { found.push_back(r); });
        std::ranges::sort(found);
        std::ranges::sort(expected);
        EXPECT_EQ(found, expected);
      }
    }
  }
}

TEST(RouteIndex, RefusesTilesWithoutARouteOnlyIfAllAreRequired) {
  RandomProblem random(1, Direction::kForward);
  EXPECT_NO_THROW(RouteIndex(random.problem).require_all());
  random.problem.routes.pop_back();
  EXPECT_THROW(RouteIndex(random.problem).require_all(), InvalidArgument);
}

TEST(RouteIndex, RefusesTwoRoutesOfAUnitToOneDevice) {
  RandomProblem random(1, Direction::kForward);
  random.problem.routes.push_back(random.problem.routes.front());
  EXPECT_THROW(RouteIndex{random.problem}, InvalidArgument);
}

TEST(RouteIndex, OrdersTilesByRankThenByPlace) {
  const RandomProblem random(5, Direction::kForward);
  std::vector<std::size_t> mine;
  for (std::size_t t = 0; t < random.tiles.size(); ++t) mine.push_back(t);
  const auto rank_of = [](std::size_t t) { return static_cast<int>(t % 3); };
  order_by_rank(random.problem, mine, rank_of);
  ASSERT_EQ(mine.size(), random.tiles.size());
  const auto key = [&](std::size_t t) {
    const PlacedTile& tile = random.tiles[t];
    return std::tuple(rank_of(t), tile.q_block, tile.kv_block, tile.group, t);
  };
  for (std::size_t i = 1; i < mine.size(); ++i) EXPECT_LT(key(mine[i - 1]), key(mine[i]));
}

}  // namespace
}  // namespace contextile
