// A start for many parts: the level is split in two, then the halves are split, and so on.
#pragma once

#include <cstdint>

#include "partition/hypergraph/graph_level.h"
#include "partition/hypergraph/graph_problem.h"

namespace contextile {

// Splits a level recursively. Every split is multilevel itself: tries from different starts on a
// coarse level, `effort` times the default number, and the best one refined on the way back up.
// While refining all parts at once settles the borders between parts, this settles which parts are
// neighbours, which no single move can change later. Fixed vertices are in their parts; capacities
// may be exceeded. Deterministic by seed. O(pins · log pins · log parts).
[[nodiscard]] IdVector<VertexId, PartId> bisect_recursively(const HyperLevel& level,
                                                            const HyperProblem& problem,
                                                            double effort, std::uint64_t seed);

}  // namespace contextile
