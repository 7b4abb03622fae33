// Search on one level: simulated annealing with exact deltas, and greedy refinement.
#pragma once

#include <cstdint>

#include "partition/hypergraph/graph_state.h"

namespace contextile {

struct HyperAnnealing {
  std::int64_t steps = 0;
  // Temperatures, in multiples of the mean cost of a random move between neighbouring parts.
  double first_temperature = 0.5;
  double last_temperature = 0.03;
  std::uint64_t seed = 1;
};

// Anneals with moves to the part of a neighbour, swaps if that part is full, and moves of a net's
// pins together. No step raises the overload of any part. Ends on the best partition seen, by
// (overload, score), which is never worse than the one it began with. O(steps · nets of a vertex) +
// O(vertices · 64).
void anneal(HyperState& state, const HyperAnnealing& annealing);

// Moves vertices to their best part as long as that lowers the score.
void refine_greedily(HyperState& state, std::uint64_t seed);

}  // namespace contextile
