// What a plan's JSON says by leaving it out.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/mask.h"
#include "contextile/workload.h"

namespace contextile {

// Every sequence counts its positions from zero.
[[nodiscard]] inline std::vector<PositionSegment> positions_from_zero(
    std::span<const Range> sequences) {
  std::vector<PositionSegment> positions;
  positions.reserve(sequences.size());
  for (const Range& sequence : sequences) {
    positions.push_back({sequence, static_cast<std::int64_t>(positions.size()), 0});
  }
  return positions;
}

// What a shape without a scale of its own has.
[[nodiscard]] inline double scale_of_head_dim(AttentionShape shape) {
  shape.scale = 0;
  return shape.effective_scale();
}

}  // namespace contextile
