// Placements improved by simulated annealing on simulated time. Messages that wait, further calls
// and relays, which rows and grids estimate or ignore, are priced exactly. Every move costs a
// simulation, so this is for small batches.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/auto/placement_trials.h"

namespace contextile {

class Polish {
 public:
  Polish(SearchState& state, bool retain) : state_(state), trials_(state, retain) {}

  // Moves tiles, blocks and schedules of the best starts, if enough plans fit into that share of
  // all limits.
  void run(std::vector<Tried> starts, double share);

 private:
  // Anneals each placement with that many plans, side by side, and sorts them by cost.
  void anneal(std::vector<Tried>& tried, std::int64_t plans);

  SearchState& state_;
  PlacementTrials trials_;
};

}  // namespace contextile
