// Values of members that a plan's JSON may leave out.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/mask.h"
#include "contextile/workload.h"

namespace contextile {

// Positions of sequences that each count from zero.
[[nodiscard]] inline std::vector<PositionSegment> positions_from_zero(
    std::span<const Range> sequences) {
  std::vector<PositionSegment> positions;
  positions.reserve(sequences.size());
  for (const Range& sequence : sequences) {
    positions.push_back({sequence, static_cast<std::int64_t>(positions.size()), 0});
  }
  return positions;
}

// The scale of a shape without a scale of its own.
[[nodiscard]] inline double scale_of_head_dim(AttentionShape shape) {
  shape.scale = 0;
  return shape.effective_scale();
}

}  // namespace contextile
