// Stages that hide transfers under compute, by time rather than by volume.
#pragma once

#include <cstdint>
#include <span>

#include "contextile/extend/arrangement.h"
#include "strategy/schedule/placed_tiles.h"

namespace contextile {

struct OverlapCosts {
  std::span<const double> tile_us;  // of every tile of the problem
  double intra_us_per_byte = 0;     // of a device's port inside its node
  double inter_us_per_byte = 0;     // of a device's share of the NICs
};

struct OverlapOptions {
  std::int32_t stages = 4;  // number of stages in which inputs arrive, at least 1
  // Stages before its need that a transfer may start, at least 1. More of them hide uneven ports
  // and need more buffers.
  std::int32_t ahead = 1;

  friend bool operator==(const OverlapOptions&, const OverlapOptions&) = default;
};

// Schedules tiles and transfers. Inputs of a device arrive in `stages` equal parts of the time they
// take it. Inputs of tiles whose results must travel come first, and units that the device passes
// on, so that both start early. A tile runs in the stage that brings its last input. Tiles that
// need nothing fill the stages whose transfers last longer than their compute, including the first
// and the one after the last. A result leaves after the device's last tile of it, and its relay
// sends it one stage later. Inputs without a route are already on the device (owned or retained).
// O(tiles · log + routes).
[[nodiscard]] ArrangedDirection schedule_overlapped(const ScheduleProblem& problem,
                                                    const OverlapCosts& costs,
                                                    const OverlapOptions& options);

}  // namespace contextile
