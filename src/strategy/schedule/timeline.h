// Schedules made slot by slot on a clock that all devices share.
#pragma once

#include <cstdint>
#include <span>

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "strategy/schedule/placed_tiles.h"

namespace contextile {

struct TimelineOptions {
  std::int32_t slots = 16;  // that the busiest device's compute is cut into, at least 1
  // Slots before its turn that a transfer may start, at least 1: more hide uneven ports and keep
  // more buffers.
  std::int32_t ahead = 1;
  Dtype partial_wire = Dtype::kF32;  // of results, as far as ports are concerned

  friend bool operator==(const TimelineOptions&, const TimelineOptions&) = default;
};

// A list schedule. Time is cut into slots; a device's stage s is slot s. In every slot ports and
// NICs have a slot's capacity, which waiting transfers take in the order of their deadlines: an
// input's is when its device would have run out of tiles without it (an earlier one where it is
// passed on), a result's the end. Devices compute from what has arrived in earlier slots: first
// tiles whose results must travel, all of one result together and those that can be complete early
// before others. A result leaves after the device's last tile of it. Inputs without a route are at
// hand already (owned or retained). `tile_us` are the times of the problem's tiles.
// O(tiles · log + routes · slots).
[[nodiscard]] ArrangedDirection schedule_timeline(const ScheduleProblem& problem,
                                                  std::span<const double> tile_us,
                                                  const Cluster& cluster,
                                                  const TimelineOptions& options);

}  // namespace contextile
