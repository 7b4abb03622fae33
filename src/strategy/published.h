// The published methods, in the order tables list them: every strategy but `auto`.
#pragma once

#include <span>

#include "contextile/strategy.h"

namespace contextile {

[[nodiscard]] std::span<const Strategy* const> published_strategies();

}  // namespace contextile
