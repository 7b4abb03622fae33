// The first part of a search: a placement of every kind with few steps, of which those that are
// estimated to take least are simulated.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/auto/placement_trials.h"

namespace contextile {

class QuickSearch {
 public:
  QuickSearch(SearchState& state, bool retain);

  // Whether a few rows attend far more than others: where they go whole, most of the keys go too.
  [[nodiscard]] bool is_lopsided() const { return is_lopsided_; }
  // Rows, and tiles where rows do not look good. Those that were simulated, as limits allow:
  // placing takes no more than the first share of them.
  [[nodiscard]] std::vector<Tried> try_likely(double share_of_placing, double share);
  // Tiles, if they have not been tried and the best so far does not look good.
  [[nodiscard]] std::vector<Tried> try_tiles(double share_of_placing, double share);

 private:
  [[nodiscard]] std::vector<Placement> tiles(int turns, double share_of_placing, double share);
  [[nodiscard]] std::vector<Placement> place(std::vector<PlacementChoice> choices,
                                             double share_of_placing, double share);
  // The best of them.
  [[nodiscard]] std::vector<Tried> simulate(std::vector<Placement> placements, double share);
  [[nodiscard]] std::int64_t steps_of_placing_one(const PlacementChoice& choice) const;
  // What the placement's plan takes, as far as its estimate says.
  [[nodiscard]] double expected_us(const Placement& placement) const;

  SearchState& state_;
  PlacementTrials trials_;
  std::vector<PlacementChoice> row_choices_;
  double mean_us_ = 0;  // all devices' work in the mean, as rows are priced
  bool is_lopsided_ = false;
  bool has_placed_tiles_ = false;
};

}  // namespace contextile
