// Schedules for placements of whole rows: few calls, rows or columns in an order.
#pragma once

#include <cstdint>
#include <span>

#include "contextile/extend/arrangement.h"
#include "strategy/schedule/placed_tiles.h"

namespace contextile {

struct InOrderOptions {
  std::int32_t stages = 1;  // that what waits for others, or others wait for, is cut into
  std::int32_t ahead = 1;   // stages before its need that a transfer may start, at least 1

  friend bool operator==(const InOrderOptions&, const InOrderOptions&) = default;
};

// Forward takes rows in order: those that need nothing from elsewhere, then in `stages` parts of
// equal time those that receive fewest tokens first. Backward takes columns: those whose gradients
// travel to other nodes, then to other devices, in `stages` parts of equal time, then those that
// stay. A row (a column) is never cut. Results leave after the last tile and are waited for at the
// end, those that a relay gathers one stage later. Inputs without a route are at hand already.
// `tile_us` are the times of the problem's tiles. O(tiles · log + routes).
[[nodiscard]] ArrangedDirection schedule_in_order(const ScheduleProblem& problem,
                                                  std::span<const double> tile_us,
                                                  const InOrderOptions& options);

}  // namespace contextile
