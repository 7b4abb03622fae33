// Coarsening: vertices that share heavy small nets are merged.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/hypergraph/graph_level.h"
#include "partition/hypergraph/graph_problem.h"

namespace contextile {

struct HyperStep {
  HyperLevel coarse;
  IdVector<VertexId, VertexId> cluster;  // of every vertex of the finer level
};

// Returns all steps from `finest` down to about `target` vertices; none if it has no more or
// nothing merges. A cluster holds only vertices that agree in `fixed` and `start`, and at most a
// small share of a part in both dimensions, so that parts can still be packed. Deterministic by
// seed. O(pins) per step.
[[nodiscard]] std::vector<HyperStep> coarsen(const HyperLevel& finest, const HyperProblem& problem,
                                             std::int64_t target, std::uint64_t seed);

// Returns for every finer vertex the part of its cluster.
[[nodiscard]] IdVector<VertexId, PartId> projected(const IdVector<VertexId, PartId>& parts,
                                                   const IdVector<VertexId, VertexId>& cluster);

}  // namespace contextile
