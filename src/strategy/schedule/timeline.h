// Schedules made slot by slot on a clock that all devices share.
#pragma once

#include <cstdint>
#include <span>

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "strategy/schedule/placed_tiles.h"

namespace contextile {

struct TimelineOptions {
  std::int32_t slots = 16;  // parts into which the busiest device's compute is cut, at least 1
  // Slots by which a transfer may start early, plus 1. Higher values hide uneven ports and need
  // more buffers.
  std::int32_t ahead = 1;
  Dtype partial_wire = Dtype::kF32;  // dtype of results, for the load of ports

  friend bool operator==(const TimelineOptions&, const TimelineOptions&) = default;
};

// Returns a list schedule. Time is cut into slots; a device's stage s is slot s. In every slot each
// port and NIC has the capacity of one slot, and waiting transfers take it in the order of their
// deadlines. The deadline of an input is the time when its device would have run out of tiles
// without it, or an earlier time if it is passed on. The deadline of a result is the end. Devices
// compute tiles whose inputs arrived in earlier slots. Tiles whose results must travel come first,
// all of one result together, and results that can be complete early come before others. A result
// leaves after the device's last tile of it. Inputs without a route are already on the device
// (owned or retained). `tile_us` are the times of the problem's tiles.
// O(tiles · log + routes · slots).
[[nodiscard]] ArrangedDirection schedule_timeline(const ScheduleProblem& problem,
                                                  std::span<const double> tile_us,
                                                  const Cluster& cluster,
                                                  const TimelineOptions& options);

}  // namespace contextile
