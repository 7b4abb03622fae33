// Initial partitions of the coarsest level.
#pragma once

#include <cstdint>
#include <vector>

#include "hypergraph/level.h"
#include "hypergraph/problem.h"

namespace contextile {

// The start of that index: a packing, a greedy growing, and fillings in neighbour and in vertex
// order take turns, each time from another random place. It may exceed capacities. Fixed vertices
// are where they belong. Deterministic by index and seed.
[[nodiscard]] std::vector<std::int32_t> make_start(const HyperLevel& level,
                                                   const HyperProblem& problem, std::int32_t index,
                                                   std::uint64_t seed);

}  // namespace contextile
