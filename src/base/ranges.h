// Sets of positions as ranges.
#pragma once

#include <vector>

#include "contextile/base.h"

namespace contextile {

// The same positions in ascending ranges: neighbours and overlaps are joined, none is empty. O(n
// log n).
[[nodiscard]] std::vector<Range> merged(std::vector<Range> ranges);

}  // namespace contextile
