// Attention calls whose times are known: devices that split heads, and both directions, make the
// same calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/plan.h"

namespace contextile {

// µs by Direction.
using CallTimes = std::array<double, 2>;

// Calls are alike when they list the same blocks in the same order, head groups counted from that
// of their first tile: a group costs what any other costs. Keeps the last two of each hash.
class KnownCalls {
 public:
  // Room for about that many; what is kept must outlive this.
  explicit KnownCalls(std::size_t num_calls);

  // The times of a call alike, or null. O(tiles).
  [[nodiscard]] const CallTimes* find(const std::vector<TileOp>& tiles) const;
  void keep(const std::vector<TileOp>& tiles, const CallTimes& times);

 private:
  struct Known {
    const std::vector<TileOp>* tiles = nullptr;
    CallTimes times{};
  };

  [[nodiscard]] std::size_t slot_of(const std::vector<TileOp>& tiles) const;

  std::vector<std::array<Known, 2>> known_;  // a power of two, the later one first
};

}  // namespace contextile
