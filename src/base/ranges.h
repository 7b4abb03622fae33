// Sets of positions as ranges.
#pragma once

#include <vector>

#include "contextile/base.h"

namespace contextile {

// The same positions, ascending, neighbours and overlaps as one, none empty. O(n · log).
[[nodiscard]] std::vector<Range> merged(std::vector<Range> ranges);

}  // namespace contextile
