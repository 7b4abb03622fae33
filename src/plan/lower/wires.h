// Wire dtypes of transfers: which results are finished when they travel.
#pragma once

#include <span>
#include <vector>

#include "plan/lower/lowering.h"

namespace contextile {

// Inputs travel in the activation dtype; a result that holds all tiles of its unit (finished) too;
// a partial one in `partial_wire`. O(tiles + transfers · log).
[[nodiscard]] std::vector<Dtype> transfer_wires(const RoundLayout& layout,
                                                const ArrangedDirection& arranged,
                                                Direction direction, Dtype dtype,
                                                Dtype partial_wire);

}  // namespace contextile
