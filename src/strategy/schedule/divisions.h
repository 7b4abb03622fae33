// DCP's communication schedule (Jiang et al., SOSP 2025, Listing 3): tiles in divisions, so that
// the inputs of a division travel under the one before.
#pragma once

#include <cstdint>

#include "contextile/extend/arrangement.h"
#include "contextile/extend/strategies.h"
#include "strategy/schedule/placed_tiles.h"

namespace contextile {

struct DivisionOptions {
  std::int32_t divisions = 4;  // T, at least 2
  PairShare share = PairShare::kWithin;
  ResultTiming results = ResultTiming::kAfter;
};

// Schedules tiles in divisions. The first division has the tiles that need nothing from other
// devices. Each next one adds tiles to the least loaded device first (FLOPs in the division; ties
// by rank), in (query, key, group) order, until none is left that the shares of its pairs allow. An
// ordered pair of devices has 1/T of all it will move as its share of a division. The last division
// has the rest. A unit that comes through a relay is used from the second division on, because its
// two hops take two. O(tiles · T + routes).
[[nodiscard]] ArrangedDirection schedule_divisions(const ScheduleProblem& problem,
                                                   const DivisionOptions& options);

}  // namespace contextile
