// An attention instruction as intervals of keys by row, for FlexAttention.
#pragma once

#include <span>

#include "contextile/advanced/stage_lists.h"
#include "runtime/stages/row_segments.h"

namespace contextile {

// O(rows · width + blocks of rows · blocks of keys).
[[nodiscard]] StageIntervals stage_intervals(std::span<const RowSegment> segments,
                                             Direction direction);

// Number of rows of keys that the segments see, without repetition.
[[nodiscard]] std::int64_t num_keys(std::span<const RowSegment> segments);

}  // namespace contextile
