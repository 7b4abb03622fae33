// Checks that this machine can hold a batch and the ranks that work on it.
#pragma once

#include <string_view>

#include "contextile/plan.h"

namespace contextile {

// Memory for executing a plan on in-process ranks, bytes: inputs and results of the whole batch and
// again by rank, in the activation dtype, plus the memory that the plan's devices need.
[[nodiscard]] double inproc_bytes(const Plan& plan, const PlanStats& statistics);

// Throws InvalidArgument with `where` when that many bytes are more than this machine has.
void check_machine_memory(std::string_view where, const Plan& plan, double needed_bytes);

}  // namespace contextile
