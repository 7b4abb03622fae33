// Placements of our own tried out: made, put under schedules, simulated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/simulate.h"
#include "planner/auto/placement.h"
#include "planner/auto/search_state.h"

namespace contextile {

// When every device is done with a direction, µs.
struct DeviceEnds {
  std::vector<double> forward;
  std::vector<double> backward;
};

// What a placement takes under schedules.
struct TrialOutcome {
  SchedulePair schedules;
  PlanTimes times;
  DeviceEnds ends;

  // Takes over a direction that is faster under the other's schedules.
  void take_better(const TrialOutcome& other);
};

// A placement under the schedules that suit it best, each direction for itself.
struct Tried {
  Placement placement;
  TrialOutcome outcome;
  double cost_us = kNever;  // SearchState::cost_us
};

class PlacementTrials {
 public:
  PlacementTrials(SearchState& state, bool retain) : state_(state), retain_(retain) {}

  // The tiles that a choice places, cut and priced once for all that place them. Not at once by
  // several threads.
  [[nodiscard]] const std::shared_ptr<const PricedTiles>& priced(const PlacementChoice& choice);
  // In parallel, without those that would not end in time, but for the first where there is no plan
  // yet. `starts` is empty or has one for every choice.
  [[nodiscard]] std::vector<Placement> place(std::span<const PlacementChoice> choices);

  // Simulates every placement under the pairs of schedules; of each the best schedule of either
  // direction. In the order given, without those for which time was too short. The best of all is
  // a candidate.
  [[nodiscard]] std::vector<Tried> try_pairs(std::span<const Placement> placements,
                                             std::span<const SchedulePair> pairs);
  // The same for placements that have been tried: what is better than before is kept.
  void try_pairs_again(std::span<Tried> tried, std::span<const SchedulePair> pairs);

  // Rows placed whole, on from where they are: device by device what ends late counts for more.
  // Returns the best of so many rounds, and itself.
  [[nodiscard]] Tried rebalanced(const Tried& tried, int rounds) const;

  void take_if_best(const Tried& tried);

 private:
  // The best of each placement.
  [[nodiscard]] std::vector<TrialOutcome> simulate_all(std::span<const Placement* const> placements,
                                                       std::span<const SchedulePair> pairs);
  [[nodiscard]] TrialOutcome simulated(const Placement& placement,
                                       const SchedulePair& schedules) const;
  [[nodiscard]] double cost_us(const Placement& placement, const PlanTimes& times) const;

  SearchState& state_;
  bool retain_;
};

// The number of tiles that a plan of the placement has.
[[nodiscard]] std::int64_t num_tiles(const Placement& placement);
// Tokens of the device that owns most.
[[nodiscard]] std::int64_t most_tokens(const Placement& placement, std::int32_t num_devices);

}  // namespace contextile
