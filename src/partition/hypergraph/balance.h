// Balance in two dimensions: packings that ignore nets, and repair of overloaded partitions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/fast_random.h"
#include "partition/hypergraph/graph_state.h"

namespace contextile {

// Packs vertices, heaviest first, each in the part that it leaves least filled among those with
// room; if none has room, in the part it overloads least. For small levels that do not fit this
// way, packings are searched for one that does, up to a fixed number of steps.
[[nodiscard]] IdVector<VertexId, PartId> pack(const HyperLevel& level, const HyperProblem& problem);

// Lowers state.overload() by moves, then by swaps, cheapest cost per overload removed first, until
// it is 0 or no move found lowers it. Fixed vertices stay. Returns true if every part fits.
bool repair(HyperState& state, FastRandom& random);

}  // namespace contextile
