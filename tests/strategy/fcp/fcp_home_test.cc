// FCP with data that already lives on devices: which data stays, which moves, and when.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/plan_build.h"
#include "contextile/plan.h"
#include "contextile/verify.h"
#include "strategy/fcp/fcp.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

void add_contiguous_home(Workload& workload, std::int32_t num_devices) {
  const std::int64_t tokens = workload.num_tokens();
  for (std::int32_t r = 0; r < num_devices; ++r) {
    const Range range{tokens * r / num_devices, tokens * (r + 1) / num_devices};
    if (!range.empty()) workload.home.push_back({range, Rank{r}});
  }
}

void add_scattered_home(Workload& workload, std::int32_t num_devices, std::int64_t longest,
                        Rng& rng) {
  for (std::int64_t at = 0; at < workload.num_tokens();) {
    const std::int64_t end = std::min(workload.num_tokens(), at + random_between(rng, 1, longest));
    const auto owner = random_between(rng, 0, num_devices - 1);
    workload.home.push_back({{at, end}, Rank{static_cast<std::int32_t>(owner)}});
    at = end;
  }
}

// Returns a few long documents among many short ones, with about as many tokens per device.
Workload long_tail(std::uint64_t seed, std::int32_t num_devices) {
  Rng rng(seed);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 12 * num_devices; ++i) {
    lengths.push_back(random_between(rng, 1, random_chance(rng, 0.05) ? 30000 : 1500));
  }
  return batch_of(lengths);
}

const ArrangedDirection& direction_of(const ArrangedMask& mask, Direction direction) {
  return direction == Direction::kForward ? *mask.forward : *mask.backward;
}

// Checks that inputs never travel to their home or twice to one device, and that results never
// leave their home. This holds for any batch, mask and layout.
void expect_nothing_moves_that_home_has(const Arrangement& arrangement) {
  const ArrangedRound& round = arrangement.rounds[0];
  for (const ArrangedMask& mask : round.programs) {
    for (const Direction direction : kDirections) {
      std::set<std::tuple<Kind, BlockId, GroupId, Rank>> received;
      for (const Transfer& t : direction_of(mask, direction).transfers) {
        const Rank home = round.owners[t.block.index()];
        EXPECT_NE(is_result(t.kind) ? t.src : t.dst, home) << to_string(t.kind);
        if (is_result(t.kind)) continue;
        EXPECT_TRUE(received.emplace(t.kind, t.block, t.group, t.dst).second);
      }
    }
  }
}

TEST(FcpHome, NoByteMovesThatHomeHas) {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    Rng rng(seed);
    const Cluster cluster = cluster_of(static_cast<std::int32_t>(random_between(rng, 1, 3)), 4);
    MaskUse mask;
    mask.name = "mask";
    mask.spec = random_mask_spec(rng, kAllRules[random_between(rng, 0, 7)], 300);
    Workload workload = make_workload(random_lengths(rng, 20, 900), {}, {&mask, 1});
    if (random_chance(rng, 0.5)) {
      add_contiguous_home(workload, cluster.num_devices());
    } else {
      add_scattered_home(workload, cluster.num_devices(), 400, rng);
    }
    const StrategyRequest request =
        request_with({{"block", random_chance(rng, 0.5) ? "64" : "30"},
                      {"coalesce", random_chance(rng, 0.5) ? "2" : "16"},
                      {"head_parallel", random_chance(rng, 0.3) ? "2" : "1"},
                      {"reshuffle", random_chance(rng, 0.3) ? "before" : "overlapped"}});
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Arrangement arrangement = fcp_strategy().arrange(workload, cluster, request);
    expect_nothing_moves_that_home_has(arrangement);
    const VerifyReport report = verify(build_plan(workload, cluster, arrangement));
    EXPECT_TRUE(report.ok()) << report.violations.front();
    if (HasFailure()) return;
  }
}

TEST(FcpHome, WhatIsEvenAtHomeStaysThere) {
  // A document of 3000 tokens on each of 8 devices, cut into blocks whose size does not divide it.
  Workload workload = batch_of(std::vector<std::int64_t>(8, 3000));
  add_contiguous_home(workload, 8);
  const Arrangement arrangement =
      fcp_strategy().arrange(workload, cluster_of(2, 4), request_with({{"block", "256"}}));
  EXPECT_TRUE(arrangement.rounds[0].programs[0].forward->transfers.empty());
  EXPECT_TRUE(arrangement.rounds[0].programs[0].backward->transfers.empty());
}

struct HomeShares {
  double at_home = 0;    // share of pairs on the home of query and key
  double in_a_home = 0;  // share of pairs with query and key in one home
};
HomeShares shares_of(const ArrangedRound& round) {
  HomeShares shares;
  double total = 0;
  for (const PlacedTile& tile : round.programs[0].forward->tiles) {
    const Rank home = round.owners[tile.q_block.index()];
    const auto pairs = static_cast<double>(tile.pairs);
    total += pairs;
    if (home != round.owners[tile.kv_block.index()]) continue;
    shares.in_a_home += pairs;
    if (tile.device == home) shares.at_home += pairs;
  }
  return {shares.at_home / total, shares.in_a_home / total};
}

TEST(FcpHome, KeepsMostOfAHomesPairsThereAtAnEvenLoad) {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    SCOPED_TRACE(seed);
    const Cluster cluster = cluster_of(2, 8);
    const StrategyRequest request =
        request_with({{"block", "256"}, {"cost", "pairs"}, {"cut_heavy", "off"}});
    Workload workload = long_tail(seed, 16);
    const Plan anywhere =
        build_plan(workload, cluster, fcp_strategy().arrange(workload, cluster, request));
    add_contiguous_home(workload, 16);
    const Arrangement arrangement = fcp_strategy().arrange(workload, cluster, request);
    const PlanStats stats = statistics(build_plan(workload, cluster, arrangement));
    const HomeShares shares = shares_of(arrangement.rounds[0]);
    EXPECT_GT(shares.at_home, 0.5 * shares.in_a_home);
    EXPECT_LT(stats.forward->total_bytes(), statistics(anywhere).forward->total_bytes());
    // Loads are levelled to 1.02 of the mean, and a home may add 1%.
    EXPECT_LE(stats.forward->compute_overload,
              std::max(statistics(anywhere).forward->compute_overload, 0.02) + 0.011);
  }
}

TEST(FcpHome, CutsStagesByBytes) {
  constexpr std::int64_t kBlock = 256;
  for (const std::int64_t coalesce : {4, 16}) {
    Workload workload = long_tail(7, 16);
    add_contiguous_home(workload, 16);
    const Arrangement arrangement = fcp_strategy().arrange(
        workload, cluster_of(2, 8),
        request_with({{"block", "256"}, {"coalesce", fmt::format("{}", coalesce)}}));
    const ArrangedRound& round = arrangement.rounds[0];
    using Key = std::tuple<bool, Rank, std::int32_t>;  // true: sends; device; stage that needs it
    std::map<Key, std::int64_t> bytes;
    std::int32_t last_move = 0;
    std::int32_t first_cast = 1 << 20;
    for (const Transfer& t : round.programs[0].forward->transfers) {
      if (is_result(t.kind)) continue;
      const std::int64_t moved = unit_bytes(t.kind, round.blocks.num_tokens(t.block),
                                            workload.shape, 1, workload.shape.dtype);
      bytes[{true, t.src, t.need_stage}] += moved;
      bytes[{false, t.dst, t.need_stage}] += moved;
      if (t.kind == Kind::kQ) {
        last_move = std::max(last_move, t.need_stage);
      } else {
        first_cast = std::min(first_cast, t.need_stage);
      }
    }
    const std::int64_t budget =
        coalesce * unit_bytes(Kind::kKv, kBlock, workload.shape, 1, workload.shape.dtype);
    ASSERT_FALSE(bytes.empty());
    for (const auto& [key, moved] : bytes) EXPECT_LE(moved, budget);
    EXPECT_LE(first_cast, last_move);  // casts do not wait for the moves of others
  }
}

TEST(FcpHome, RunsTilesAtHomeBeforeAnythingArrives) {
  Workload workload = long_tail(3, 16);
  add_contiguous_home(workload, 16);
  const Arrangement arrangement =
      fcp_strategy().arrange(workload, cluster_of(2, 8), request_with({{"block", "256"}}));
  const ArrangedRound& round = arrangement.rounds[0];
  for (const Direction direction : kDirections) {
    std::set<Rank> first;
    std::set<Rank> with_home;
    for (const PlacedTile& tile : direction_of(round.programs[0], direction).tiles) {
      const bool at_home = round.owners[tile.q_block.index()] == tile.device &&
                           round.owners[tile.kv_block.index()] == tile.device;
      if (at_home) with_home.insert(tile.device);
      if (tile.stage > 0) continue;
      EXPECT_TRUE(at_home);
      first.insert(tile.device);
    }
    EXPECT_EQ(first, with_home);
  }
}

}  // namespace
}  // namespace contextile
