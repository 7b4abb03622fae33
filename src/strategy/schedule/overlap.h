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
  std::int32_t stages = 4;  // that inputs arrive in, at least 1
  // Stages before its need that a transfer may start, at least 1: more hide uneven ports and keep
  // more buffers.
  std::int32_t ahead = 1;

  friend bool operator==(const OverlapOptions&, const OverlapOptions&) = default;
};

// Inputs of a device arrive in `stages` equal parts of the time they take it: first those of tiles
// whose results must travel, and what it passes on, so that both start early. A tile runs in the
// stage that brings its last input; tiles that need nothing fill the stages whose transfers last
// longer than their compute, the first and the one after the last included. A result leaves after
// the device's last tile of it, through its relay one stage later. Inputs without a route are at
// hand already (owned or retained). O(tiles · log + routes).
[[nodiscard]] ArrangedDirection schedule_overlapped(const ScheduleProblem& problem,
                                                    const OverlapCosts& costs,
                                                    const OverlapOptions& options);

}  // namespace contextile
