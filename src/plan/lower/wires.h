// Wire dtypes of transfers, which depend on whether a result is finished when it travels.
#pragma once

#include <span>
#include <vector>

#include "plan/lower/lowering.h"

namespace contextile {

// Inputs travel in the activation dtype, and so does a result that holds all tiles of its unit (a
// finished one); a partial one travels in `partial_wire`. O(tiles + transfers · log).
[[nodiscard]] std::vector<Dtype> transfer_wires(const RoundLayout& layout,
                                                const ArrangedDirection& arranged,
                                                Direction direction, Dtype dtype,
                                                Dtype partial_wire);

}  // namespace contextile
