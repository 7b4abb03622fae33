#include "runtime/executor/token_places.h"

#include <algorithm>

namespace contextile {

std::span<const TokenPlace> TokenPlaces::of(BlockId block) {
  const auto [at, is_new] = places_.try_emplace(block);
  if (!is_new) return at->second;
  for (const Range& range : round_.blocks.ranges(block)) {
    for (std::int64_t token = range.begin; token < range.end; ++token) {
      at->second.push_back(
          {static_cast<std::int32_t>(token), static_cast<std::int32_t>(position_of(token))});
    }
  }
  return at->second;
}

TilePlaces TokenPlaces::of(const TileOp& tile, std::int32_t part) {
  const std::int32_t unit_heads = plan_.shape.q_heads / round_.groups_of(tile.q_block);
  const std::int32_t part_heads = plan_.shape.q_heads / round_.head_groups;
  return {tile.group.value * unit_heads + part * part_heads, of(tile.q_block), of(tile.kv_block)};
}

// Plans made without positions count from the start of every sequence.
std::int64_t TokenPlaces::position_of(std::int64_t token) const {
  if (plan_.positions.empty()) {
    const auto after = std::ranges::upper_bound(plan_.sequences, token, {}, &Range::begin);
    return after == plan_.sequences.begin() ? token : token - (after - 1)->begin;
  }
  const auto begin_of = [](const PositionSegment& segment) { return segment.tokens.begin; };
  const auto after = std::ranges::upper_bound(plan_.positions, token, {}, begin_of);
  if (after == plan_.positions.begin()) return token;
  return (after - 1)->first_position + token - (after - 1)->tokens.begin;
}

}  // namespace contextile
