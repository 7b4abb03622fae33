// Attention calls whose times are known. Devices that split heads, and both directions, make the
// same calls.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/plan.h"

namespace contextile {

// Times in µs by Direction.
using CallTimes = std::array<double, 2>;

// Calls are alike if they list the same blocks in the same order, with head groups counted from
// that of their first tile: all groups cost the same. Keeps the last two of each hash.
class KnownCalls {
 public:
  // Makes room for about that many calls; tiles that are kept must outlive the object.
  explicit KnownCalls(std::size_t num_calls);

  // The times of an equal call, or null. O(tiles).
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
