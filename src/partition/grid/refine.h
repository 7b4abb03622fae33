// Greedy refinement with hard caps, and repairs, which make an annealed assignment feasible and
// locally optimal.
#pragma once

#include <cstdint>

#include "base/fast_random.h"
#include "partition/grid/state.h"

namespace contextile {

// Moves tiles, in random order, to the best device that has room: off overloaded devices at any
// price, otherwise only if the cost falls. Returns the decrease of the cost.
std::int64_t refine_tiles(GridState& state, FastRandom& random);

// Moves and swaps owners while the cost falls and token caps hold. Owners on overfull devices move
// at any price. Returns the decrease of the cost.
std::int64_t refine_owners(GridState& state);

// Moves and swaps owners, cheapest bytes per token first, until no device holds more tokens than
// the cap.
void repair_tokens(GridState& state);

// Moves tiles off overloaded devices until none is above the cap or no tile fits elsewhere.
void repair_work(GridState& state);

}  // namespace contextile
