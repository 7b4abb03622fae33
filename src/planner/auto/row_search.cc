#include "planner/auto/row_search.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/parallel_for.h"
#include "contextile/planner.h"
#include "planner/auto/placement_choices.h"
#include "planner/auto/schedule_rules.h"
#include "planner/auto/tuning.h"

namespace contextile {

std::int64_t RowSearch::expected_tiles(const PlacementChoice& choice) const {
  const auto of_a_group = static_cast<double>(likely_tiles(state_.workload, choice.block_size));
  double groups = choice.head_groups;
  for (const Tried& tried : tried_) {
    const Placement& placement = tried.placement;
    if (placement.choice.unit != choice.unit) continue;
    groups = static_cast<double>(num_tiles(placement)) /
             static_cast<double>(placement.priced->tiles.all_tiles.size());
    break;
  }
  return static_cast<std::int64_t>(of_a_group * groups);
}

std::int64_t RowSearch::steps_of(const PlacementChoice& choice) const {
  return steps_of_rows(state_.workload, choice) +
         steps_of_simulating(state_.num_devices(), expected_tiles(choice));
}

void RowSearch::place_and_try(std::vector<PlacementChoice> choices, double share) {
  choices = state_.spend_on(choices, share,
                            [&](const PlacementChoice& choice) { return steps_of(choice); });
  if (choices.empty()) return;
  const std::vector<Placement> placements = trials_.place(choices);
  for (const Placement& placement : placements) {
    const auto pairs = likely_schedules(placement.choice.unit, placement.estimate_us).first(1);
    for (Tried& tried : trials_.try_pairs({&placement, 1}, pairs)) {
      tried_.push_back(std::move(tried));
    }
  }
  std::ranges::stable_sort(tried_, {}, &Tried::cost_us);
}

void RowSearch::try_schedules(std::size_t most, std::size_t first, std::size_t end, double share) {
  for (std::size_t t = 0; t < std::min(most, tried_.size()); ++t) {
    Tried& tried = tried_[t];
    if (tried.cost_us > tuning::kNearRows * state_.best.cost_us) break;
    const auto all = likely_schedules(tried.placement.choice.unit, tried.placement.estimate_us);
    std::vector<SchedulePair> pairs;
    for (std::size_t p = first; p < std::min(end, all.size()); ++p) {
      if (all[p] != tried.outcome.schedules) pairs.push_back(all[p]);
    }
    const std::int64_t steps =
        steps_of_simulating(state_.num_devices(), num_tiles(tried.placement));
    state_.settle();
    while (!pairs.empty() && !state_.spend(std::ssize(pairs) * steps, share)) {
      pairs.pop_back();
    }
    trials_.try_pairs_again({&tried, 1}, pairs);
  }
  std::ranges::stable_sort(tried_, {}, &Tried::cost_us);
}

void RowSearch::rebalance(std::size_t most, int rounds, double share) {
  std::vector<Tried> best;
  state_.settle();
  // Each spends its expected steps; if they are many, fewer are rebalanced.
  std::int64_t left = static_cast<std::int64_t>(tuning::kRebalancingSteps * state_.options.effort);
  for (const Tried& tried : tried_) {
    if (best.size() == most || tried.cost_us > tuning::kNearRows * state_.best.cost_us) break;
    PlacementChoice warm = tried.placement.choice;
    warm.effort = tuning::kWarmRowEffort;
    const std::int64_t of_round =
        steps_of_rows(state_.workload, warm) +
        steps_of_simulating(state_.num_devices(), num_tiles(tried.placement));
    while (best.empty() && rounds > 1 && !state_.fits(rounds * of_round, share)) --rounds;
    const std::int64_t steps = rounds * of_round;
    if ((steps > left && !best.empty()) || !state_.spend(steps, share)) break;
    left -= steps;
    best.push_back(tried);
  }
  parallel_for(std::size_t{0}, best.size(),
               [&](std::size_t i) { best[i] = trials_.rebalanced(best[i], rounds); });
  state_.tried += static_cast<std::int32_t>(best.size()) * rounds;
  for (std::size_t i = 0; i < best.size(); ++i) {
    trials_.keep_if_best(best[i]);
    tried_[i] = std::move(best[i]);
  }
  std::ranges::stable_sort(tried_, {}, &Tried::cost_us);
}

void RowSearch::add_tried(Tried tried) {
  tried_.push_back(std::move(tried));
  std::ranges::stable_sort(tried_, {}, &Tried::cost_us);
}

void RowSearch::refine(double share) {
  rebalance(1, tuning::kRefiningRounds, share);
  try_schedules(1, 1, tuning::kRefiningSchedules, share);
  rebalance(1, tuning::kRefiningRounds, share);
}

void RowSearch::try_uneven(double share) {
  place_and_try(
      uneven_row_choices(state_.workload, state_.cluster, state_.request, state_.options.effort),
      share);
  try_schedules(tuning::kUnevenRowsScheduled, 0, tuning::kRowSchedules, share);
}

bool RowSearch::is_near() const {
  return !tried_.empty() && tried_.front().cost_us <= tuning::kNearRows * state_.best.cost_us;
}

void RowSearch::try_sizes(double share) {
  place_and_try(row_choices(state_.workload, state_.cluster, state_.request, state_.options.effort),
                share);
}

void RowSearch::improve(double share) {
  rebalance(tuning::kRebalancedRows, tuning::kRebalancingRounds, share);
  try_schedules(tuning::kRebalancedRows / 2, 1, tuning::kRowSchedules, share);
  rebalance(1, tuning::kRebalancingRounds, share);
}

void RowSearch::finish(double share) {
  try_schedules(tuning::kRebalancedRows, 0, tuning::kRowSchedules, share);
  rebalance(tuning::kRebalancedRows, tuning::kRebalancingRounds, share);
}

}  // namespace contextile
