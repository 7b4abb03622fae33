// Starting assignments for annealing.
#pragma once

#include "partition/grid/state.h"

namespace contextile {

// Places are all devices, or under Reach::kNodes the first device of every node.

// Long sequences get consecutive places, rows in order, tiles by work and owners by tokens; short
// ones go whole, longest first, to the place they leave least full.
void start_contiguous(GridState& state);
// Blocks by row work, heaviest first, to the least loaded place with room; a row's tiles stay with
// its owner while that is under the cap.
void start_greedy(GridState& state);
// Nodes are chosen: inside every node rows go to its devices in order.
void start_inside_nodes(GridState& state);

}  // namespace contextile
