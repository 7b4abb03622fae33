// Checks of the inputs of planning ahead.
#pragma once

#include <cstdint>
#include <vector>

#include "contextile/advanced/lookahead.h"

namespace contextile {

// Throw InvalidArgument, which says what was expected and found.
void check_job(const PlanJob& job);
void check_lookahead_options(const LookaheadOptions& options);
// Slices of a step that are no values of a store are a failure of their step alone.
void check_fits_store(const std::vector<std::vector<std::uint8_t>>& slices);

}  // namespace contextile
