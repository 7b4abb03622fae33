// Counts how often partial results are rounded on their way.
#pragma once

#include <cstdint>

#include "contextile/extend/arrangement.h"

namespace contextile {

// Returns how often a partial result is rounded at most, if all of them travel in a dtype narrower
// than f32: the largest number of transfers that it makes, one after another, before it is merged
// for the last time. O(transfers · log).
[[nodiscard]] std::int32_t most_roundings(const Arrangement& arrangement);

}  // namespace contextile
