// Trials of our own placements: each is made, scheduled and simulated.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/simulate.h"
#include "planner/auto/placement.h"
#include "planner/auto/search_state.h"

namespace contextile {

// The time when each device is done with a direction, µs.
struct DeviceEnds {
  std::vector<double> forward;
  std::vector<double> backward;
};

// The times of a placement under schedules.
struct TrialOutcome {
  SchedulePair schedules;
  PlanTimes times;
  DeviceEnds ends;

  // Adopts each direction of `other` that is faster there.
  void adopt_faster(const TrialOutcome& other);
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

  // The tiles that a choice places, cut and priced once for all choices that place them. Not safe
  // to call from several threads at once.
  [[nodiscard]] const std::shared_ptr<const PricedTiles>& priced(const PlacementChoice& choice);
  // Makes placements in parallel, without those that would not end in time. The first is always
  // made if there is no plan yet.
  [[nodiscard]] std::vector<Placement> place(std::span<const PlacementChoice> choices);

  // Simulates every placement under the pairs of schedules and keeps the best schedule of each
  // direction. The results have the order given, without those that time was too short for. The
  // best of all is a candidate.
  [[nodiscard]] std::vector<Tried> try_pairs(std::span<const Placement> placements,
                                             std::span<const SchedulePair> pairs);
  // The same for placements that have been tried: keeps a schedule that is better.
  void try_pairs_again(std::span<Tried> tried, std::span<const SchedulePair> pairs);

  // Places whole rows again from where they are; every round the work of devices that end late
  // counts for more. Returns the best of that many rounds and of the given one.
  [[nodiscard]] Tried rebalanced(const Tried& tried, int rounds) const;

  // Sets the outcome and cost of a placement under its schedules.
  void simulate_again(Tried& tried) const;

  // Makes the placement the best candidate of the search if it is better.
  void keep_if_best(const Tried& tried);

 private:
  // The best outcome of each placement.
  [[nodiscard]] std::vector<TrialOutcome> simulate_all(std::span<const Placement* const> placements,
                                                       std::span<const SchedulePair> pairs);
  [[nodiscard]] TrialOutcome simulated(const Placement& placement,
                                       const SchedulePair& schedules) const;
  // Tokens of the device that owns the most.
  [[nodiscard]] std::int64_t owned_tokens(const Placement& placement) const;
  [[nodiscard]] double cost_us(const Placement& placement, const PlanTimes& times) const;

  SearchState& state_;
  bool retain_;
};

// The number of tiles that a plan of the placement has.
[[nodiscard]] std::int64_t num_tiles(const Placement& placed);
// Tokens of the device that owns most.
[[nodiscard]] std::int64_t most_tokens(const Placement& placed, std::int32_t num_devices);

}  // namespace contextile
