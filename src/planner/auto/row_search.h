// Placements of whole rows as candidates of a search.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/auto/placement_trials.h"

namespace contextile {

class RowSearch {
 public:
  RowSearch(SearchState& state, bool retain) : state_(state), trials_(state, retain) {}

  [[nodiscard]] const std::vector<Tried>& tried() const { return tried_; }  // the best first
  // True if the best of them may catch up with the best candidate of all.
  [[nodiscard]] bool is_near() const;
  // Adds a placement that another part has tried, to go on from it.
  void add_tried(Tried tried);
  // Rebalances the best of them, under more schedules.
  void refine(double share);
  // Tries placements that give devices uneven work, so that fewer keys travel.
  void try_uneven(double share);
  // Tries more block sizes, seeds and steps.
  void try_sizes(double share);
  // Rebalances the best for longer and tries more schedules.
  void improve(double share);
  // The same once more, with the rest of the limits.
  void finish(double share);

 private:
  // Places and tries those that limits allow.
  void place_and_try(std::vector<PlacementChoice> choices, double share);
  // Tries schedules on the best of those near the best so far.
  void try_schedules(std::size_t most, std::size_t first, std::size_t end, double share);
  void rebalance(std::size_t most, int rounds, double share);
  [[nodiscard]] std::int64_t steps_of(const PlacementChoice& choice) const;
  // The tiles to expect of a placement at the choice, as tried placements of its kind have them.
  [[nodiscard]] std::int64_t expected_tiles(const PlacementChoice& choice) const;

  SearchState& state_;
  PlacementTrials trials_;
  std::vector<Tried> tried_;  // by cost
};

}  // namespace contextile
