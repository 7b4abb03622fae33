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

  // The next three draft placements, simulate the likeliest of them and return what was simulated.
  // Drafts spend no more than the first share of the limits, and simulations no more than the
  // second; the first plan of a search may use all that is left.
  //
  // Rows, and tiles if rows do not look good.
  [[nodiscard]] std::vector<Tried> try_likely(double draft_share, double share);
  // Tiles, if none have been drafted and the best so far does not look good.
  [[nodiscard]] std::vector<Tried> try_tiles(double draft_share, double share);
  // Rows with uneven work.
  [[nodiscard]] std::vector<Tried> try_uneven(double draft_share, double share);

 private:
  // Places those choices that fit into the draft's share and whose simulation still fits into the
  // other.
  [[nodiscard]] std::vector<Placement> draft(std::vector<PlacementChoice> choices,
                                             double draft_share, double share);
  [[nodiscard]] std::vector<Placement> draft_tiles(int turns, double draft_share, double share);
  // Simulates the drafts that are expected to take least.
  [[nodiscard]] std::vector<Tried> simulate_best(std::vector<Placement> drafts, double share);
  [[nodiscard]] std::int64_t steps_of_placing_one(const PlacementChoice& choice) const;
  // The expected time of the placement's plan, from its estimate.
  [[nodiscard]] double expected_us(const Placement& placement) const;

  SearchState& state_;
  PlacementTrials trials_;
  std::vector<PlacementChoice> row_choices_;
  double mean_us_ = 0;  // mean of all devices' work, as rows are priced
  bool is_lopsided_ = false;
  bool has_drafted_tiles_ = false;
};

}  // namespace contextile
