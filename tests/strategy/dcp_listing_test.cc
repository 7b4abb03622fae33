// DCP's Listing 3, recomputed from finished arrangements: which tiles a division has, and what
// every pair of devices moves for it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/base.h"
#include "contextile/extend/strategies.h"
#include "contextile/planner.h"
#include "strategy/dcp_cases.h"
#include "support/batches.h"

namespace contextile {
namespace {

using Pair = std::pair<Rank, Rank>;                                   // sender, receiver
using Input = std::tuple<Kind, BlockId, GroupId>;                     // a unit that a tile reads
using Bytes = std::map<std::pair<Pair, std::int32_t>, std::int64_t>;  // by pair and division

// One direction of an arrangement, with what the listing decides by.
class Listing {
 public:
  Listing(const ArrangedRound& round, const ArrangedDirection& arranged, Direction direction,
          const AttentionShape& shape, std::int32_t divisions)
      : round_(round),
        arranged_(arranged),
        direction_(direction),
        shape_(shape),
        divisions_(divisions) {
    for (const Transfer& transfer : arranged.transfers) {
      if (is_result(transfer.kind)) continue;
      const Pair pair{transfer.src, transfer.dst};
      const std::int64_t size = bytes(transfer.kind, transfer.block);
      total_[pair] += size;
      moved_[{pair, transfer.need_stage}] += size;
      const auto [at, is_new] = division_of_.try_emplace(
          {transfer.dst, {transfer.kind, transfer.block, transfer.group}}, transfer.need_stage);
      EXPECT_TRUE(is_new) << "a unit travels once";
    }
  }

  void expect_local_tiles_first() const {
    for (const PlacedTile& tile : arranged_.tiles) {
      EXPECT_EQ(tile.stage == 0, remote_inputs(tile).empty());
      for (const Input& input : remote_inputs(tile)) {
        EXPECT_LE(division_of_.at({tile.device, input}), tile.stage);
      }
    }
  }

  // Counts pairs and divisions that move more than their share, the last division aside.
  [[nodiscard]] std::int64_t num_above_share() const {
    std::int64_t above = 0;
    for (const auto& [key, size] : moved_) {
      if (key.second == divisions_ - 1) continue;
      if (size * divisions_ > total_.at(key.first)) ++above;
    }
    return above;
  }

  // Every tile of a later division would have taken a pair of an earlier one above its share.
  void expect_nothing_left_that_fits() const {
    for (const PlacedTile& tile : arranged_.tiles) {
      for (std::int32_t division = 1; division < std::min(tile.stage, divisions_ - 1); ++division) {
        EXPECT_FALSE(fits(tile, division)) << "division " << division;
      }
    }
  }

  void expect_results_last() const {
    for (const Transfer& transfer : arranged_.transfers) {
      if (is_result(transfer.kind)) {
        EXPECT_GE(transfer.launch_stage, divisions_);
      } else {
        EXPECT_EQ(transfer.launch_stage, transfer.need_stage - 1);
      }
    }
  }

 private:
  [[nodiscard]] std::int64_t bytes(Kind kind, BlockId block) const {
    return unit_bytes(kind, round_.blocks.num_tokens(block), shape_, round_.head_groups,
                      shape_.dtype);
  }
  [[nodiscard]] std::vector<Input> remote_inputs(const PlacedTile& tile) const {
    std::vector<Input> inputs;
    for (int k = 0; k < kNumKinds; ++k) {
      const auto kind = static_cast<Kind>(k);
      if (is_result(kind) || !occurs_in(kind, direction_)) continue;
      const BlockId block = is_of_kv(kind) ? tile.kv_block : tile.q_block;
      if (round_.owners[block.index()] != tile.device) inputs.emplace_back(kind, block, tile.group);
    }
    return inputs;
  }
  [[nodiscard]] bool fits(const PlacedTile& tile, std::int32_t division) const {
    std::map<Pair, std::int64_t> added;
    for (const Input& input : remote_inputs(tile)) {
      if (division_of_.at({tile.device, input}) <= division) continue;
      const auto [kind, block, group] = input;
      added[{round_.owners[block.index()], tile.device}] += bytes(kind, block);
    }
    for (const auto& [pair, size] : added) {
      const auto moved = moved_.find({pair, division});
      const std::int64_t already = moved == moved_.end() ? 0 : moved->second;
      if ((already + size) * divisions_ > total_.at(pair)) return false;
    }
    return true;
  }

  const ArrangedRound& round_;
  const ArrangedDirection& arranged_;
  Direction direction_;
  const AttentionShape& shape_;
  std::int32_t divisions_;
  std::map<Pair, std::int64_t> total_;
  Bytes moved_;
  std::map<std::pair<Rank, Input>, std::int32_t> division_of_;
};

struct Listed {
  std::int64_t above_share = 0;
};

Listed check_one(Rng& rng, DcpOptions options) {
  const auto [nodes, devices] = any_of(rng, kMachines);
  const Cluster cluster = cluster_of(nodes, devices);
  const std::string mask = any_of(rng, kMasks);
  AttentionShape shape = grouped_heads();
  shape.kv_heads = any_of(rng, {1, 2, 4});
  options.divisions = any_of(rng, {2, 3, 4, 4, 7});
  options.effort = 0.1;
  if (random_chance(rng, 0.3)) options.partitioner = Partitioner::kHypergraph;
  StrategyRequest request;
  request.options = choice_of(options).options;
  request.block_size = any_of(rng, kBlockSizes);
  request.seed = rng.next() % 1000;
  const Workload workload =
      batch_of(batch_lengths(rng, random_between(rng, 1 << 12, 1 << 16)), mask, shape);
  const Arrangement arrangement = find_strategy("dcp").arrange(workload, cluster, request);
  const ArrangedRound& round = arrangement.rounds.front();
  const ArrangedMask& programs = round.programs.front();
  SCOPED_TRACE(fmt::format("{} {}x{} block {} {} tokens {}", mask, nodes, devices,
                           *request.block_size, choice_text(choice_of(options)),
                           workload.num_tokens()));
  Listed listed;
  for (const auto& [direction, arranged] : {std::pair(Direction::kForward, &programs.forward),
                                            std::pair(Direction::kBackward, &programs.backward)}) {
    const Listing listing(round, **arranged, direction, workload.shape, options.divisions);
    listing.expect_local_tiles_first();
    listing.expect_results_last();
    if (options.share == PairShare::kWithin) listing.expect_nothing_left_that_fits();
    listed.above_share += listing.num_above_share();
  }
  return listed;
}

TEST(DcpListing, NoPairExceedsItsShareAndNothingThatFitsIsDeferred) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    EXPECT_EQ(check_one(rng, {}).above_share, 0);
  }
}

TEST(DcpListing, PairsExceedTheirSharesOnlyIfTheyMay) {
  std::int64_t above_share = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    above_share += check_one(rng, {.share = PairShare::kReached}).above_share;
  }
  EXPECT_GT(above_share, 0);
}

}  // namespace
}  // namespace contextile
