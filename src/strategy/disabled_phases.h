// Phases of a search that a request disables.
#pragma once

#include "contextile/extend/strategy.h"

namespace contextile {

// Throws InvalidArgument unless every name of StrategyRequest::disabled_phases is a phase of the
// strategy, with the list of them.
void check_disabled_phases(const Strategy& strategy, const StrategyRequest& request);

}  // namespace contextile
