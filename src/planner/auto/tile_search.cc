#include "planner/auto/tile_search.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "planner/auto/placement_choices.h"
#include "planner/auto/schedule_rules.h"
#include "planner/auto/tuning.h"

namespace contextile {

bool TileSearch::is_near() const {
  return !tried_.empty() && tried_.front().cost_us <= tuning::kNearTiles * state_.best.cost_us;
}

std::int64_t TileSearch::steps_of(const PlacementChoice& choice, std::int64_t simulations) const {
  return steps_of_tiles(state_.workload, state_.cluster, choice) +
         simulations *
             steps_of_simulating(state_.num_devices(), most_tiles(state_.workload, choice));
}

void TileSearch::place_and_try(const std::vector<PlacementChoice>& choices, std::size_t most,
                               std::span<const SchedulePair> pairs, double share) {
  // Simulates every second choice, or more if there are few.
  const std::int64_t simulations = std::ssize(pairs) / 2;
  std::vector<Placement> placements =
      trials_.place(state_.spend_on(choices, share, [&](const PlacementChoice& choice) {
        return steps_of(choice, simulations);
      }));
  std::ranges::stable_sort(placements, {}, &Placement::estimate_us);
  if (placements.size() > most) placements.resize(most);
  for (Tried& tried : trials_.try_pairs(placements, pairs)) tried_.push_back(std::move(tried));
  std::ranges::stable_sort(tried_, {}, &Tried::cost_us);
}

void TileSearch::add_tried(Tried tried) {
  tried_.push_back(std::move(tried));
  std::ranges::stable_sort(tried_, {}, &Tried::cost_us);
}

void TileSearch::try_sizes(double share) {
  place_and_try(tile_choices(state_.workload, state_.cluster, state_.request, tuning::kTileEps),
                tuning::kTilesSimulated, likely_schedules(PlacedUnit::kTiles, 0), share);
}

void TileSearch::improve(double share) {
  using Slots = TimelineOptions;
  using Stages = OverlapOptions;
  static const std::vector<SchedulePair> kPairs = {
      {Stages{4, 2}, Stages{4, 2}},   {Stages{6, 6}, Stages{6, 6}}, {Stages{16, 4}, Stages{16, 4}},
      {Stages{32, 8}, Stages{32, 8}}, {Slots{4, 1}, Slots{4, 1}},   {Slots{6, 1}, Slots{6, 1}},
      {Slots{8, 1}, Slots{8, 1}},     {Slots{16, 2}, Slots{16, 2}}, {Slots{24, 2}, Slots{24, 2}}};
  if (!is_near()) return;
  for (const double eps : tuning::kOtherTileEps) {
    place_and_try(tile_choices(state_.workload, state_.cluster, state_.request, eps),
                  tuning::kOtherEpsSimulated, likely_schedules(PlacedUnit::kTiles, 0), share);
  }
  if (!is_near()) return;
  std::vector<PlacementChoice> choices;
  for (std::size_t t = 0; t < std::min(tuning::kTilesImproved, tried_.size()); ++t) {
    for (std::size_t seed = 0; seed < tuning::kImprovingEpsParts.size(); ++seed) {
      PlacementChoice choice = tried_[t].placement.choice;
      choice.effort = tuning::kImprovingEffort * state_.options.effort;
      choice.seed += 1 + seed;
      choice.eps *= tuning::kImprovingEpsParts[seed];
      choices.push_back(choice);
    }
  }
  place_and_try(choices, tuning::kTilesImproved, kPairs, share);
}

}  // namespace contextile
