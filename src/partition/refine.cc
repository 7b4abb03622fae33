#include "partition/refine.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace contextile {
namespace {

template <typename Visit>
void for_each_lane(LaneMask mask, const Visit& visit) {
  for (; mask != 0; mask &= mask - 1) visit(lowest_lane(mask));
}

std::int64_t load_of(const GridState& s, Lane lane) {
  return s.load[static_cast<std::size_t>(lane)];
}
std::int64_t tokens_of(const GridState& s, Lane lane) {
  return s.tokens[static_cast<std::size_t>(lane)];
}
std::int64_t block_tokens(const GridState& s, std::int32_t b) {
  return s.level->blocks[static_cast<std::size_t>(b)].held_tokens;
}
Lane owner_of(const GridState& s, std::int32_t b) { return s.owner[static_cast<std::size_t>(b)]; }

// Best device for a tile among `candidates` with room for it, or -1. `any_price`: even if the cost
// rises.
Lane best_device(const GridState& s, std::int32_t t, LaneMask candidates, bool any_price) {
  const std::int64_t work = s.level->tiles[static_cast<std::size_t>(t)].work;
  Lane best = -1;
  std::int64_t best_delta = 0;
  for_each_lane(candidates, [&](Lane lane) {
    if (load_of(s, lane) + work > s.work_limit(lane)) return;
    const std::int64_t delta = s.tile_delta(t, lane);
    const bool better = best < 0 ? delta < 0 || any_price
                                 : delta < best_delta ||
                                       (delta == best_delta && load_of(s, lane) < load_of(s, best));
    if (better) {
      best = lane;
      best_delta = delta;
    }
  });
  return best;
}

// Lanes any net of the block spans.
LaneMask lanes_of_block(const GridState& s, std::int32_t b) {
  LaneMask mask = 0;
  for (std::int32_t net = b; net < s.level->num_nets(); net += s.level->num_blocks()) {
    mask |= s.span(net);
  }
  return mask;
}

// Blocks by owner, kept up to date by the caller's moves.
std::vector<std::vector<std::int32_t>> blocks_by_owner(const GridState& s) {
  std::vector<std::vector<std::int32_t>> result(static_cast<std::size_t>(s.layout.num_lanes()));
  for (std::int32_t b = 0; b < s.level->num_blocks(); ++b) {
    result[static_cast<std::size_t>(owner_of(s, b))].push_back(b);
  }
  return result;
}

bool move_owners(GridState& s) {
  bool changed = false;
  for (std::int32_t b = 0; b < s.level->num_blocks(); ++b) {
    const Lane from = owner_of(s, b);
    const bool overfull = tokens_of(s, from) > s.token_cap(from);
    const LaneMask candidates = (overfull ? s.lanes() : lanes_of_block(s, b)) & ~lane_bit(from);
    std::int64_t best_delta = overfull ? std::numeric_limits<std::int64_t>::max() : 0;
    Lane best = -1;
    for_each_lane(candidates, [&](Lane to) {
      if (tokens_of(s, to) + block_tokens(s, b) > s.token_cap(to)) return;
      const std::int64_t delta = s.owner_delta(b, to);
      if (delta < best_delta) {
        best_delta = delta;
        best = to;
      }
    });
    if (best < 0) continue;
    s.move_owner(b, best);
    changed = true;
  }
  return changed;
}

// Swaps b with a block of `to` if that lowers the cost.
bool swap_with(GridState& s, std::int32_t b, Lane to,
               std::vector<std::vector<std::int32_t>>& owned) {
  const Lane from = owner_of(s, b);
  const std::int64_t gain = s.owner_delta(b, to);
  if (gain >= 0) return false;
  for (std::int32_t& other : owned[static_cast<std::size_t>(to)]) {
    const std::int64_t shift = block_tokens(s, b) - block_tokens(s, other);
    if (tokens_of(s, to) + shift > s.token_cap(to) ||
        tokens_of(s, from) - shift > s.token_cap(from)) {
      continue;
    }
    if (gain + s.owner_delta(other, from) >= 0) continue;
    s.move_owner(b, to);
    s.move_owner(other, from);
    auto& mine = owned[static_cast<std::size_t>(from)];
    *std::find(mine.begin(), mine.end(), b) = other;
    other = b;
    return true;
  }
  return false;
}

bool swap_owners(GridState& s) {
  bool changed = false;
  auto owned = blocks_by_owner(s);
  for (std::int32_t b = 0; b < s.level->num_blocks(); ++b) {
    LaneMask candidates = lanes_of_block(s, b);
    for (; candidates != 0; candidates &= candidates - 1) {
      const Lane to = lowest_lane(candidates);
      if (to != owner_of(s, b) && swap_with(s, b, to, owned)) changed = true;
    }
  }
  return changed;
}

struct TokenRepair {
  double price = std::numeric_limits<double>::infinity();  // bytes per token of overload removed
  std::int32_t block = -1;
  std::int32_t swapped = -1;
  Lane to = -1;
};

// The cheapest move or swap that lowers the overload of `from`.
TokenRepair best_token_repair(const GridState& s, Lane from,
                              const std::vector<std::vector<std::int32_t>>& owned) {
  const auto overload = [&](Lane lane, std::int64_t shift) {
    return std::max<std::int64_t>(0, tokens_of(s, lane) + shift - s.token_cap(lane));
  };
  TokenRepair best;
  const auto consider = [&](std::int32_t b, std::int32_t other, Lane to, std::int64_t shift) {
    const std::int64_t gain =
        overload(from, 0) + overload(to, 0) - overload(from, -shift) - overload(to, shift);
    if (shift <= 0 || gain <= 0) return;
    std::int64_t bytes = s.owner_delta(b, to);
    if (other >= 0) bytes += s.owner_delta(other, from);
    const double price = static_cast<double>(bytes) / static_cast<double>(gain);
    if (price < best.price) best = {price, b, other, to};
  };
  for (const std::int32_t b : owned[static_cast<std::size_t>(from)]) {
    for_each_lane(s.lanes() & ~lane_bit(from), [&](Lane to) {
      consider(b, -1, to, block_tokens(s, b));
      for (const std::int32_t other : owned[static_cast<std::size_t>(to)]) {
        consider(b, other, to, block_tokens(s, b) - block_tokens(s, other));
      }
    });
  }
  return best;
}

}  // namespace

std::int64_t refine_tiles(GridState& s, FastRandom& random) {
  const std::int64_t before = s.cost;
  std::vector<std::int32_t> order(s.level->tiles.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1],
              order[static_cast<std::size_t>(random.below(static_cast<std::int32_t>(i)))]);
  }
  for (const std::int32_t t : order) {
    const GridLevel::LevelTile& tile = s.level->tiles[static_cast<std::size_t>(t)];
    const Lane from = s.place[static_cast<std::size_t>(t)];
    const bool overloaded = load_of(s, from) > s.work_limit(from);
    const bool alone_in_row = s.count(tile.row_net, from) == 1 && owner_of(s, tile.row) != from;
    const bool alone_in_column =
        s.count(tile.column_net, from) == 1 && owner_of(s, tile.column) != from;
    if (!alone_in_row && !alone_in_column && !overloaded) continue;
    const LaneMask candidates =
        (overloaded ? s.lanes() : s.span(tile.row_net) | s.span(tile.column_net)) & ~lane_bit(from);
    const Lane to = best_device(s, t, candidates, overloaded);
    if (to >= 0) s.move_tile(t, to);
  }
  return before - s.cost;
}

std::int64_t refine_owners(GridState& s) {
  const std::int64_t before = s.cost;
  constexpr int kRounds = 4;
  for (int round = 0; round < kRounds; ++round) {
    const bool moved = move_owners(s);
    if (!swap_owners(s) && !moved) break;
  }
  return before - s.cost;
}

void repair_tokens(GridState& s) {
  constexpr int kMaxRepairs = 1000;
  for (int i = 0; i < kMaxRepairs; ++i) {
    Lane fullest = lowest_lane(s.lanes());
    for_each_lane(s.lanes(), [&](Lane lane) {
      if (tokens_of(s, lane) - s.token_cap(lane) > tokens_of(s, fullest) - s.token_cap(fullest)) {
        fullest = lane;
      }
    });
    if (tokens_of(s, fullest) <= s.token_cap(fullest)) return;
    const TokenRepair repair = best_token_repair(s, fullest, blocks_by_owner(s));
    if (repair.block < 0) return;
    s.move_owner(repair.block, repair.to);
    if (repair.swapped >= 0) s.move_owner(repair.swapped, fullest);
  }
}

void repair_work(GridState& s) {
  for_each_lane(s.lanes(), [&](Lane lane) {
    const std::int64_t limit = s.work_limit(lane);
    if (load_of(s, lane) <= limit) return;
    std::vector<std::int32_t> here;
    for (std::int32_t t = 0; t < s.level->num_tiles(); ++t) {
      if (s.place[static_cast<std::size_t>(t)] == lane) here.push_back(t);
    }
    std::stable_sort(here.begin(), here.end(), [&](std::int32_t a, std::int32_t b) {
      return s.level->tiles[static_cast<std::size_t>(a)].work <
             s.level->tiles[static_cast<std::size_t>(b)].work;
    });
    for (const std::int32_t t : here) {
      if (load_of(s, lane) <= limit) return;
      const Lane to = best_device(s, t, s.lanes() & ~lane_bit(lane), true);
      if (to >= 0) s.move_tile(t, to);
    }
  });
}

}  // namespace contextile
