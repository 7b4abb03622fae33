// Reductions of a program that can run as one list.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/executor/prepared_plan.h"

namespace contextile {

// For every instruction of the program, returns the end of those that can run as one list with it.
// For a reduction these are the reductions that follow it, as long as none touches a place that
// another writes; for any other, it is itself. O(reductions · sources · list length).
[[nodiscard]] std::vector<std::size_t> reduce_batches(const LocalRound& round,
                                                      const Program& program);

}  // namespace contextile
