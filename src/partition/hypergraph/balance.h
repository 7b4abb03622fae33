// Balance in two dimensions: packings that ignore nets, and repair of overloaded partitions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/fast_random.h"
#include "partition/hypergraph/graph_state.h"

namespace contextile {

// Heaviest vertices first, each to the part that it leaves least filled among those that have room;
// where none has, to the one it overloads least. Small levels that do not fit this way are searched
// for a packing that does, up to a fixed number of steps.
[[nodiscard]] IdVector<VertexId, PartId> pack(const HyperLevel& level, const HyperProblem& problem);

// Lowers state.overload() by moves, then by swaps, cheapest cost per overload removed first, until
// it is 0 or nothing found lowers it. Fixed vertices stay. Returns whether every part fits.
bool repair(HyperState& state, FastRandom& random);

}  // namespace contextile
