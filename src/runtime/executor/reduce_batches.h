// Which reductions of a program can be one list.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/executor/prepared_plan.h"

namespace contextile {

// For every instruction of the program the end of those that can run as one list with it: for a
// reduction, the reductions that follow it and of which none touches what another writes; for any
// other, itself. O(reductions · sources · what a list holds).
[[nodiscard]] std::vector<std::size_t> reduce_batches(const LocalRound& round,
                                                      const Program& program);

}  // namespace contextile
