// The published methods, as the registry lists them.
#pragma once

#include <span>

#include "contextile/extend/strategy.h"

namespace contextile {

// Returns all strategies except `auto`, which the planner adds (planner.h), in the order in which
// tables list them.
[[nodiscard]] std::span<const Strategy* const> published_strategies();

}  // namespace contextile
