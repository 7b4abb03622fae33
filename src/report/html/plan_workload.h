// The workload a plan is for.
#pragma once

#include "contextile/plan.h"
#include "contextile/workload.h"

namespace contextile {

// Sequences, shape, homes and positions as the plan has them, the masks of all rounds together, and
// the roles of its blocks. O((blocks + bands) log).
[[nodiscard]] Workload workload_of(const Plan& plan);

}  // namespace contextile
