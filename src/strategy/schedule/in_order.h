// Schedules for placements of whole rows: few calls, with rows or columns in order.
#pragma once

#include <cstdint>
#include <span>

#include "contextile/extend/arrangement.h"
#include "strategy/schedule/placed_tiles.h"

namespace contextile {

struct InOrderOptions {
  std::int32_t stages = 1;  // equal parts of the rows or columns with transfers
  std::int32_t ahead = 1;   // stages before its need that a transfer may start, at least 1

  friend bool operator==(const InOrderOptions&, const InOrderOptions&) = default;
};

// Schedules the tiles of every device. Forward takes rows in this order: those that need nothing
// from other devices, then the others in `stages` parts of equal time, those that receive the
// fewest tokens first. Backward takes columns: those whose gradients travel to other nodes, then
// those whose gradients travel to other devices, in `stages` parts of equal time, then those whose
// gradients stay. A row (a column) is never cut. Results leave after the last tile and are waited
// for at the end; those that a relay gathers leave one stage later. Inputs without a route are
// already on the device. `tile_us` are the times of the problem's tiles. O(tiles · log + routes).
[[nodiscard]] ArrangedDirection schedule_in_order(const ScheduleProblem& problem,
                                                  std::span<const double> tile_us,
                                                  const InOrderOptions& options);

}  // namespace contextile
