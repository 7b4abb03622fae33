// Simulated annealing of a grid assignment with exact deltas.
#pragma once

#include <cstdint>

#include "base/fast_random.h"
#include "partition/grid/state.h"

namespace contextile {

struct AnnealSchedule {
  std::int64_t steps = 0;
  double first_temperature = 1;  // bytes
  double last_temperature = 1;   // reached geometrically
};

// Lowers state.energy() and leaves the best state seen in the last part of the run. It moves a
// tile, swaps two tiles, moves an owner or swaps two owners. Compound moves are a block's tiles of
// one net together with its ownership, a swap of two blocks, and pulling a net's tiles to the
// owners on their other side.
void anneal(GridState& state, const AnnealSchedule& schedule, FastRandom& random);

}  // namespace contextile
