// The first part of a search: it makes a placement of every kind with few steps and simulates those
// that are estimated to take least.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/auto/placement_trials.h"

namespace contextile {

class QuickSearch {
 public:
  QuickSearch(SearchState& state, bool retain);

  // True if the best plan takes much longer than its work, spread evenly: it waits for messages.
  [[nodiscard]] bool waits_much() const;
  // True if a few rows attend far more than others. A device that has them whole needs most keys.
  [[nodiscard]] bool is_lopsided() const { return is_lopsided_; }
  // Tries rows, and tiles if rows do not look good. Returns those that were simulated within the
  // limits: placing takes no more than the first share of them.
  [[nodiscard]] std::vector<Tried> try_likely(double share_of_placing, double share);
  // Tries tiles, if they have not been tried and the best so far does not look good.
  [[nodiscard]] std::vector<Tried> try_tiles(double share_of_placing, double share);

  // Places rows with uneven work, simulates the likeliest.
  [[nodiscard]] std::vector<Tried> try_uneven(double share_of_placing, double share);

 private:
  [[nodiscard]] std::vector<Placement> tiles(int turns, double share_of_placing, double share);
  [[nodiscard]] std::vector<Placement> place(std::vector<PlacementChoice> choices,
                                             double share_of_placing, double share);
  // Simulates the best of them.
  [[nodiscard]] std::vector<Tried> simulate(std::vector<Placement> placements, double share);
  [[nodiscard]] std::int64_t steps_of_placing_one(const PlacementChoice& choice) const;
  // The expected time of the placement's plan, from its estimate.
  [[nodiscard]] double expected_us(const Placement& placement) const;

  SearchState& state_;
  PlacementTrials trials_;
  std::vector<PlacementChoice> row_choices_;
  double mean_us_ = 0;  // mean of all devices' work, as rows are priced
  bool is_lopsided_ = false;
  bool has_placed_tiles_ = false;
};

}  // namespace contextile
