// The first part of a search: a placement of every kind with few steps, of which those that are
// estimated to take least are simulated.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/placement_trials.h"

namespace contextile {

class QuickSearch {
 public:
  QuickSearch(SearchState& state, bool retain) : state_(state), trials_(state, retain) {}

  // Those that were simulated, as limits allow.
  [[nodiscard]] std::vector<Tried> run(double share_of_placing, double share);

 private:
  [[nodiscard]] std::vector<PlacementChoice> choices() const;
  [[nodiscard]] std::int64_t steps_of_placing_one(const PlacementChoice& choice) const;
  // What the placement's plan takes, as far as its estimate says.
  [[nodiscard]] double expected_us(const Placement& placement) const;

  SearchState& state_;
  PlacementTrials trials_;
};

}  // namespace contextile
