// Checks that the sums in a plan's statistics fit 64 bits.
#pragma once

#include <string_view>

#include "contextile/plan.h"

namespace contextile {

// Throws InvalidPlan naming `file` when bytes or pairs of the plan add up beyond 2^61: they would
// wrap in statistics. O(plan).
void check_magnitudes(const Plan& plan, std::string_view file);

}  // namespace contextile
