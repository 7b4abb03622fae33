// Initial partitions of the coarsest level.
#pragma once

#include <cstdint>

#include "partition/hypergraph/graph_level.h"
#include "partition/hypergraph/graph_problem.h"

namespace contextile {

enum class StartKind : std::uint8_t {
  kGrowing,         // vertices in neighbour order go to the part that has most of their nets
  kPacking,         // heaviest first, ignoring nets
  kNeighbourOrder,  // parts get equal stretches of the vertices, breadth first along nets
  kVertexOrder,     // parts get equal stretches of the vertices by id, from a random one on
};

// Returns a start that may exceed capacities. Fixed vertices are in their parts. Deterministic by
// kind and seed.
[[nodiscard]] IdVector<VertexId, PartId> make_start(const HyperLevel& level,
                                                    const HyperProblem& problem, StartKind kind,
                                                    std::uint64_t seed);

}  // namespace contextile
