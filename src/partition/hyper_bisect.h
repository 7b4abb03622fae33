// A start for many parts: the level is split in two, the halves again, and so on.
#pragma once

#include <cstdint>
#include <vector>

#include "partition/hyper_level.h"
#include "partition/hyper_problem.h"

namespace contextile {

// Every split is annealed on its own, `steps_per_vertex` each. Annealing all parts at once settles
// the borders between parts; this settles which parts are neighbours, which no single move can
// change later. Fixed vertices are where they belong; capacities may be exceeded. Deterministic by
// seed.
[[nodiscard]] std::vector<std::int32_t> bisect_recursively(const HyperLevel& level,
                                                           const HyperProblem& problem,
                                                           double steps_per_vertex,
                                                           std::uint64_t seed);

}  // namespace contextile
