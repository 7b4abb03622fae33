// Placements of tiles on grids as candidates of a search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "planner/auto/placement_trials.h"

namespace contextile {

class TileSearch {
 public:
  TileSearch(SearchState& state, bool retain) : state_(state), trials_(state, retain) {}

  [[nodiscard]] const std::vector<Tried>& tried() const { return tried_; }  // the best first
  // Adds a placement that another part has tried, to go on from it.
  void add_tried(Tried tried);
  // Tries several block sizes and head groups, the most promising under several schedules.
  void try_sizes(double share);
  // If the best of them is near the best so far, tries other balances, then more steps and other
  // seeds, under more schedules.
  void improve(double share);

 private:
  // Steps of a choice with that many simulations.
  [[nodiscard]] std::int64_t steps_of(const PlacementChoice& choice,
                                      std::int64_t simulations) const;
  void place_and_try(const std::vector<PlacementChoice>& choices, std::size_t most,
                     std::span<const SchedulePair> pairs, double share);
  [[nodiscard]] bool is_near() const;

  SearchState& state_;
  PlacementTrials trials_;
  std::vector<Tried> tried_;  // by cost
};

}  // namespace contextile
