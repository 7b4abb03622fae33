#include "partition/grid/refine.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/interrupt.h"

namespace contextile {
namespace {

using OwnedBlocks = IdVector<Lane, std::vector<BlockId>>;

std::int64_t block_tokens(const GridState& s, BlockId b) { return s.level->blocks[b].held_tokens; }

// Returns the best device for a tile among `candidates` with room for it, or an invalid one if
// there is none. With `any_price`, the cost may rise.
Lane best_device(const GridState& s, TileId t, LaneMask candidates, bool any_price) {
  const std::int64_t work = s.level->tiles[t].work;
  const Lane from = s.place[t];
  Lane best;
  std::int64_t best_delta = 0;
  for_each_lane(candidates, [&](Lane lane) {
    if (!s.has_work_room(from, lane, work)) return;
    const std::int64_t delta = s.tile_delta(t, lane);
    const bool better =
        !best.valid() ? delta < 0 || any_price
                      : delta < best_delta || (delta == best_delta && s.load[lane] < s.load[best]);
    if (better) {
      best = lane;
      best_delta = delta;
    }
  });
  return best;
}

// Returns the lanes that any net of the block spans.
LaneMask lanes_of_block(const GridState& s, BlockId b) {
  LaneMask mask = 0;
  for (const GridNetId net : s.level->nets_of(b)) mask |= s.span(net);
  return mask;
}

// Returns blocks by owner. The caller updates the lists when it moves blocks.
OwnedBlocks blocks_by_owner(const GridState& s) {
  OwnedBlocks result(s.layout.lanes());
  for (const BlockId b : s.level->blocks.ids()) result[s.owner[b]].push_back(b);
  return result;
}

bool move_owners(GridState& s) {
  bool changed = false;
  for (const BlockId b : s.level->blocks.ids()) {
    const Lane from = s.owner[b];
    const bool overfull = s.tokens[from] > s.token_cap(from);
    const LaneMask candidates = (overfull ? s.lanes() : lanes_of_block(s, b)) & ~lane_bit(from);
    std::int64_t best_delta = overfull ? std::numeric_limits<std::int64_t>::max() : 0;
    Lane best;
    for_each_lane(candidates, [&](Lane to) {
      if (!s.has_token_room(from, to, block_tokens(s, b))) return;
      const std::int64_t delta = s.owner_delta(b, to);
      if (delta < best_delta) {
        best_delta = delta;
        best = to;
      }
    });
    if (!best.valid()) continue;
    s.move_owner(b, best);
    changed = true;
  }
  return changed;
}

// Swaps b with a block of `to` if that lowers the cost.
bool swap_with(GridState& s, BlockId b, Lane to, OwnedBlocks& owned) {
  const Lane from = s.owner[b];
  const std::int64_t gain = s.owner_delta(b, to);
  if (gain >= 0) return false;
  for (BlockId& other : owned[to]) {
    const std::int64_t shift = block_tokens(s, b) - block_tokens(s, other);
    if (!s.has_token_room(from, to, shift) || !s.has_token_room(to, from, -shift)) continue;
    if (gain + s.owner_delta(other, from) >= 0) continue;
    s.move_owner(b, to);
    s.move_owner(other, from);
    std::vector<BlockId>& mine = owned[from];
    *std::find(mine.begin(), mine.end(), b) = other;
    other = b;
    return true;
  }
  return false;
}

bool swap_owners(GridState& s) {
  bool changed = false;
  OwnedBlocks owned = blocks_by_owner(s);
  for (const BlockId b : s.level->blocks.ids()) {
    LaneMask candidates = lanes_of_block(s, b);
    for (; candidates != 0; candidates &= candidates - 1) {
      const Lane to = lowest_lane(candidates);
      if (to != s.owner[b] && swap_with(s, b, to, owned)) changed = true;
    }
  }
  return changed;
}

struct TokenRepair {
  double price = std::numeric_limits<double>::infinity();  // bytes per token of overload removed
  BlockId block{};                                         // invalid: nothing helps
  BlockId swapped{};  // block that returns for it; invalid: none
  Lane to{};
};

// Returns the cheapest move or swap that lowers the overload of `from`.
TokenRepair best_token_repair(const GridState& s, Lane from, const OwnedBlocks& owned) {
  const auto overload = [&](Lane lane, std::int64_t shift) {
    return std::max<std::int64_t>(0, s.tokens[lane] + shift - s.token_cap(lane));
  };
  TokenRepair best;
  const auto consider = [&](BlockId b, BlockId other, Lane to, std::int64_t shift) {
    const std::int64_t gain =
        overload(from, 0) + overload(to, 0) - overload(from, -shift) - overload(to, shift);
    if (shift <= 0 || gain <= 0) return;
    std::int64_t bytes = s.owner_delta(b, to);
    if (other.valid()) bytes += s.owner_delta(other, from);
    const double price = static_cast<double>(bytes) / static_cast<double>(gain);
    if (price < best.price) best = {price, b, other, to};
  };
  for (const BlockId b : owned[from]) {
    for_each_lane(s.lanes() & ~lane_bit(from), [&](Lane to) {
      consider(b, kInvalidBlock, to, block_tokens(s, b));
      for (const BlockId other : owned[to]) {
        consider(b, other, to, block_tokens(s, b) - block_tokens(s, other));
      }
    });
  }
  return best;
}

}  // namespace

std::int64_t refine_tiles(GridState& s, FastRandom& random) {
  const std::int64_t before = s.cost;
  const IdRange<TileId> tiles = s.level->tiles.ids();
  std::vector<TileId> order(tiles.begin(), tiles.end());
  random.shuffle(order);
  for (const TileId t : order) {
    check_interrupt();
    const GridLevel::LevelTile& tile = s.level->tiles[t];
    const Lane from = s.place[t];
    // Only a tile that is alone in its row or column on its device can lower the cost by leaving.
    const bool overloaded = s.load[from] > s.work_limit(from);
    const bool alone_in_row = s.count(tile.row_net, from) == 1 && s.owner[tile.row] != from;
    const bool alone_in_column =
        s.count(tile.column_net, from) == 1 && s.owner[tile.column] != from;
    if (!alone_in_row && !alone_in_column && !overloaded) continue;
    const LaneMask candidates =
        (overloaded ? s.lanes() : s.span(tile.row_net) | s.span(tile.column_net)) & ~lane_bit(from);
    const Lane to = best_device(s, t, candidates, overloaded);
    if (to.valid()) s.move_tile(t, to);
  }
  return before - s.cost;
}

std::int64_t refine_owners(GridState& s) {
  const std::int64_t before = s.cost;
  constexpr int kRounds = 4;
  for (int round = 0; round < kRounds; ++round) {
    check_interrupt();
    const bool moved = move_owners(s);
    if (!swap_owners(s) && !moved) break;
  }
  return before - s.cost;
}

void repair_tokens(GridState& s) {
  constexpr int kMaxRepairs = 1000;
  for (int i = 0; i < kMaxRepairs; ++i) {
    check_interrupt();
    Lane fullest = lowest_lane(s.lanes());
    for_each_lane(s.lanes(), [&](Lane lane) {
      if (s.tokens[lane] - s.token_cap(lane) > s.tokens[fullest] - s.token_cap(fullest)) {
        fullest = lane;
      }
    });
    if (s.tokens[fullest] <= s.token_cap(fullest)) return;
    const TokenRepair repair = best_token_repair(s, fullest, blocks_by_owner(s));
    if (!repair.block.valid()) return;
    s.move_owner(repair.block, repair.to);
    if (repair.swapped.valid()) s.move_owner(repair.swapped, fullest);
  }
}

void repair_work(GridState& s) {
  for_each_lane(s.lanes(), [&](Lane lane) {
    const std::int64_t limit = s.work_limit(lane);
    if (s.load[lane] <= limit) return;
    std::vector<TileId> here;
    for (const TileId t : s.level->tiles.ids()) {
      if (s.place[t] == lane) here.push_back(t);
    }
    std::stable_sort(here.begin(), here.end(), [&](TileId a, TileId b) {
      return s.level->tiles[a].work < s.level->tiles[b].work;
    });
    for (const TileId t : here) {
      if (s.load[lane] <= limit) return;
      const Lane to = best_device(s, t, s.lanes() & ~lane_bit(lane), true);
      if (to.valid()) s.move_tile(t, to);
    }
  });
}

}  // namespace contextile
