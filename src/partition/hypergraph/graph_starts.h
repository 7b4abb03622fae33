// Initial partitions of the coarsest level.
#pragma once

#include <cstdint>

#include "partition/hypergraph/graph_level.h"
#include "partition/hypergraph/graph_problem.h"

namespace contextile {

enum class StartKind : std::uint8_t {
  kGrowing,         // vertices in neighbour order go where most of their nets already are
  kPacking,         // heaviest first, nets aside
  kNeighbourOrder,  // parts get equal stretches of the vertices, breadth first along nets
  kVertexOrder,     // parts get equal stretches of the vertices by number, from a random one on
};

// It may exceed capacities. Fixed vertices are where they belong. Deterministic by kind and seed.
[[nodiscard]] IdVector<VertexId, PartId> make_start(const HyperLevel& level,
                                                    const HyperProblem& problem, StartKind kind,
                                                    std::uint64_t seed);

}  // namespace contextile
