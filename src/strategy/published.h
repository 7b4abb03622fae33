// The published methods, as the registry lists them.
#pragma once

#include <span>

#include "contextile/extend/strategy.h"

namespace contextile {

// All strategies but `auto`, which the planner adds (planner.h), in the order tables list them.
[[nodiscard]] std::span<const Strategy* const> published_strategies();

}  // namespace contextile
