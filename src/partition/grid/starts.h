// Starting assignments for annealing.
#pragma once

#include "partition/grid/state.h"

namespace contextile {

// Places below are all devices, or under Reach::kNodes the first device of every node.

// Gives long sequences consecutive places, with rows in order, tiles by work and owners by tokens.
// Short ones go whole, longest first, to the place they leave least full.
void start_contiguous(GridState& state);
// Gives blocks by row work, heaviest first, to the least loaded place with room. A row's tiles stay
// with its owner while the owner is below the cap.
void start_greedy(GridState& state);
// Divides the rows of every node among its devices, in order. The nodes are already chosen.
void start_inside_nodes(GridState& state);

}  // namespace contextile
