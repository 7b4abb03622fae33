// Refinement between two parts, with the passes of Fiduccia and Mattheyses: each makes moves and
// undoes those after its best point.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/fast_random.h"
#include "partition/hypergraph/graph_level.h"
#include "partition/hypergraph/graph_problem.h"
#include "partition/hypergraph/graph_state.h"

namespace contextile {

// Runs passes until one finds nothing. `sides` has the part, 0 or 1, of every vertex; fixed
// vertices stay. `problem` has two parts. Never ends with more overload, or with the same overload
// and a larger cut. O(pins · log) per pass. Returns true if anything changed.
bool refine_pair(const HyperLevel& level, const HyperProblem& problem,
                 IdVector<VertexId, PartId>& sides, FastRandom& random);

// Runs the same between all pairs of parts that share much, round after round while they change.
// Never raises (overload, score).
void refine_pairs(HyperState& state, std::uint64_t seed);

}  // namespace contextile
