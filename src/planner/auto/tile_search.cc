#include "planner/auto/tile_search.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "planner/auto/placement_choices.h"
#include "planner/auto/schedule_rules.h"

namespace contextile {
namespace {

// No measurement of this file's counts, tolerances and schedules is recorded: more of them take
// longer and gain less each. Judge a change with `build/auto_bench --devices 32 --seed 11` and by
// the rows of `contextile plan --explain`.
constexpr double kNearTiles = 1.15;  // times the best: others do not catch up
constexpr std::size_t kTried = 6;
constexpr double kEps = 0.12;  // of devices, to begin with

}  // namespace

bool TileSearch::is_near() const {
  return !tried_.empty() && tried_.front().cost_us <= kNearTiles * state_.best.cost_us;
}

std::int64_t TileSearch::steps_of(const PlacementChoice& choice, std::int64_t simulations) const {
  return steps_of_tiles(state_.workload, state_.cluster, choice) +
         simulations *
             steps_of_simulating(state_.num_devices(), most_tiles(state_.workload, choice));
}

void TileSearch::place_and_try(std::vector<PlacementChoice> choices, std::size_t most,
                               std::span<const SchedulePair> pairs, double share) {
  // Simulates every second choice, or more if there are few.
  const std::int64_t simulations = std::ssize(pairs) / 2;
  std::vector<Placement> placements =
      trials_.place(state_.affordable(choices, share, [&](const PlacementChoice& choice) {
        return steps_of(choice, simulations);
      }));
  std::ranges::stable_sort(placements, {}, &Placement::estimate_us);
  if (placements.size() > most) placements.resize(most);
  for (Tried& tried : trials_.try_pairs(placements, pairs)) tried_.push_back(std::move(tried));
  std::ranges::stable_sort(tried_, {}, &Tried::cost_us);
}

void TileSearch::take(Tried tried) {
  tried_.push_back(std::move(tried));
  std::ranges::stable_sort(tried_, {}, &Tried::cost_us);
}

void TileSearch::refine(double share) {
  if (!is_near()) return;
  Tried& best = tried_.front();
  state_.settle();
  std::span<const SchedulePair> pairs = likely_schedules(PlacedUnit::kTiles, 0);
  const std::int64_t steps = steps_of_simulating(state_.num_devices(), num_tiles(best.placement));
  while (!pairs.empty() && !state_.take(std::ssize(pairs) * steps, share)) {
    pairs = pairs.first(pairs.size() - 1);
  }
  trials_.try_pairs_again({&best, 1}, pairs);
}

void TileSearch::probe(double share) {
  // Efforts of 0.1, 0.2 and 0.6, a single block size, and 32 head groups made slower plans within
  // 300,000 steps, or no faster ones (seed 11, p4de, 32 KV heads, 2026-11-26).
  constexpr double kEffort = 0.3;
  constexpr std::int32_t kMostGroups = 8;
  constexpr std::size_t kSimulated = 2;
  std::vector<PlacementChoice> choices =
      tile_choices(state_.workload, state_.cluster, state_.request, kEps);
  std::int32_t groups = 1;
  for (const PlacementChoice& choice : choices) {
    if (choice.head_groups <= kMostGroups) groups = std::max(groups, choice.head_groups);
  }
  std::erase_if(choices,
                [&](const PlacementChoice& choice) { return choice.head_groups != groups; });
  for (PlacementChoice& choice : choices) choice.effort = kEffort;
  place_and_try(std::move(choices), kSimulated, likely_schedules(PlacedUnit::kTiles, 0).first(2),
                share);
}

void TileSearch::try_sizes(double share) {
  if (has_tried_sizes_) return;
  has_tried_sizes_ = true;
  place_and_try(tile_choices(state_.workload, state_.cluster, state_.request, kEps), kTried,
                likely_schedules(PlacedUnit::kTiles, 0), share);
}

void TileSearch::improve() {
  using Slots = TimelineOptions;
  using Stages = OverlapOptions;
  static const std::vector<SchedulePair> kPairs = {
      {Stages{4, 2}, Stages{4, 2}},   {Stages{6, 6}, Stages{6, 6}}, {Stages{16, 4}, Stages{16, 4}},
      {Stages{32, 8}, Stages{32, 8}}, {Slots{4, 1}, Slots{4, 1}},   {Slots{6, 1}, Slots{6, 1}},
      {Slots{8, 1}, Slots{8, 1}},     {Slots{16, 2}, Slots{16, 2}}, {Slots{24, 2}, Slots{24, 2}}};
  if (!is_near()) return;
  for (const double eps : {0.05, 0.25}) {
    place_and_try(tile_choices(state_.workload, state_.cluster, state_.request, eps), 2,
                  likely_schedules(PlacedUnit::kTiles, 0), 1);
  }
  if (!is_near()) return;
  constexpr std::size_t kImproved = 3;
  constexpr std::array kTighter = {1.0, 0.4};
  constexpr double kTimesTheSteps = 3;
  std::vector<PlacementChoice> choices;
  for (std::size_t t = 0; t < std::min(kImproved, tried_.size()); ++t) {
    for (std::size_t seed = 0; seed < kTighter.size(); ++seed) {
      PlacementChoice choice = tried_[t].placement.choice;
      choice.effort = kTimesTheSteps * state_.options.effort;
      choice.seed += 1 + seed;
      choice.eps *= kTighter[seed];
      choices.push_back(choice);
    }
  }
  place_and_try(std::move(choices), kImproved, kPairs, 1);
}

}  // namespace contextile
