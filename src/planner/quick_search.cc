#include "planner/quick_search.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "planner/placement_choices.h"
#include "planner/schedule_rules.h"

namespace contextile {
namespace {

constexpr std::size_t kSimulated = 3;  // of the placements, at most
// Others than the first only where they are expected within that of the best so far.
constexpr double kNear = 1.15;
constexpr double kEffortOfTiles = 0.15;
constexpr double kEpsOfTiles = 0.12;  // of devices
// Little effort takes less than its share of the steps of placing tiles: much is done once.
constexpr double kStepsOfEffort = 0.4;

// Simulated plans take so many times the estimates of their placements, in the mean (docs/auto.md).
double times_the_estimate(const PlacementChoice& choice) {
  switch (choice.unit) {
    case PlacedUnit::kRows:
      return 1.29;
    case PlacedUnit::kSpreadRows:
      return 1.25;
    case PlacedUnit::kTiles:
      break;
  }
  return choice.head_groups == 1 ? 1.53 : 1.32;
}

// Rows go with the first schedule of theirs, tiles with two.
std::size_t num_pairs_of(PlacedUnit unit) { return unit == PlacedUnit::kTiles ? 2 : 1; }

}  // namespace

std::vector<PlacementChoice> QuickSearch::choices() const {
  std::vector<PlacementChoice> all =
      quick_row_choices(state_.workload, state_.cluster, state_.request);
  constexpr std::size_t kTiles = 2;
  std::vector<PlacementChoice> tiles =
      tile_choices(state_.workload, state_.cluster, state_.request, kEpsOfTiles);
  if (tiles.size() > kTiles) tiles.resize(kTiles);
  for (PlacementChoice& choice : tiles) {
    choice.effort = kEffortOfTiles;
    all.push_back(choice);
  }
  return all;
}

std::int64_t QuickSearch::steps_of_placing_one(const PlacementChoice& choice) const {
  if (choice.unit != PlacedUnit::kTiles) return steps_of_rows(state_.workload, choice);
  const std::int64_t all = steps_of_tiles(state_.workload, state_.cluster, choice);
  return static_cast<std::int64_t>(kStepsOfEffort * choice.effort * static_cast<double>(all));
}

double QuickSearch::expected_us(const Placement& placement) const {
  const double us = times_the_estimate(placement.choice) * placement.estimate_us;
  return state_.cost_us(us, most_tokens(placement, state_.cluster.num_devices()));
}

std::vector<Tried> QuickSearch::run(double share_of_placing, double share) {
  std::vector<PlacementChoice> all = choices();
  if (!state_.any_will_do) {
    std::erase_if(all, [&](const PlacementChoice& choice) {
      const std::int64_t simulating =
          steps_of_simulating(state_.num_devices(), most_tiles(state_.workload, choice));
      return !state_.fits(steps_of_placing_one(choice) + simulating, share);
    });
  }
  std::vector<Placement> placements =
      trials_.place(state_.affordable(all, share_of_placing, [&](const PlacementChoice& choice) {
        return steps_of_placing_one(choice);
      }));
  std::ranges::stable_sort(placements, {},
                           [&](const Placement& placement) { return expected_us(placement); });
  std::vector<Tried> tried;
  for (const Placement& placement : placements) {
    if (tried.size() == kSimulated) break;
    const bool one_will_do = state_.any_will_do && !state_.has_plan();
    const auto pairs = likely_schedules(placement.choice.unit, placement.estimate_us)
                           .first(one_will_do ? 1 : num_pairs_of(placement.choice.unit));
    const std::int64_t steps =
        std::ssize(pairs) * steps_of_simulating(state_.num_devices(), num_tiles(placement));
    if (state_.has_plan() && expected_us(placement) > kNear * state_.best.cost_us) break;
    if (!state_.take(steps, share) && !one_will_do) continue;
    for (Tried& one : trials_.try_pairs({&placement, 1}, pairs)) tried.push_back(std::move(one));
  }
  return tried;
}

}  // namespace contextile
