#include "planner/auto/quick_search.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "planner/auto/placement_choices.h"
#include "planner/auto/schedule_rules.h"
#include "planner/auto/tuning.h"

namespace contextile {
namespace {

// Simulated time over estimate, on average.
double times_the_estimate(const PlacementChoice& choice) {
  switch (choice.unit) {
    case PlacedUnit::kRows:
      return tuning::kRowsOverEstimate;
    case PlacedUnit::kSpreadRows:
      return tuning::kSpreadRowsOverEstimate;
    case PlacedUnit::kTiles:
      break;
  }
  return choice.head_groups == 1 ? tuning::kTilesOverEstimate : tuning::kGroupedTilesOverEstimate;
}

// The pairs of schedules under which a draft is simulated.
std::size_t num_pairs_of(PlacedUnit unit) {
  return unit == PlacedUnit::kTiles ? tuning::kQuickTileSchedules : tuning::kQuickRowSchedules;
}

}  // namespace

QuickSearch::QuickSearch(SearchState& state, bool retain)
    : state_(state),
      trials_(state, retain),
      row_choices_(quick_row_choices(state.workload, state.cluster, state.request)) {
  if (row_choices_.empty()) return;
  const PricedTiles& priced = *trials_.priced(row_choices_.front());
  const Blocking& blocks = priced.tiles.work.blocks;
  std::vector<double> row_us(static_cast<std::size_t>(blocks.num_blocks()), 0);
  for (std::size_t t = 0; t < priced.work_ns.size(); ++t) {
    row_us[priced.tiles.all_tiles[t].q_block.index()] +=
        1e-3 * static_cast<double>(priced.work_ns[t]);
  }
  mean_us_ = mean_work_us(priced, state.num_devices());
  const double us_of_token = mean_us_ * static_cast<double>(state.num_devices()) /
                             static_cast<double>(state.workload.num_tokens());
  is_lopsided_ = std::ranges::any_of(IdRange<BlockId>(blocks.num_blocks()), [&](BlockId b) {
    const double us = row_us[b.index()];
    return us > tuning::kLopsidedPartOfDevice * mean_us_ &&
           us > tuning::kLopsidedTimesTokens * us_of_token *
                    static_cast<double>(blocks.num_tokens(b));
  });
}

bool QuickSearch::waits_much() const {
  return !row_choices_.empty() && state_.has_plan() &&
         state_.best.time_us > tuning::kWaitingTimesMean * mean_us_;
}

std::int64_t QuickSearch::steps_of_placing_one(const PlacementChoice& choice) const {
  if (choice.unit != PlacedUnit::kTiles) return steps_of_rows(state_.workload, choice);
  return steps_of_tiles(state_.workload, state_.cluster, choice);
}

double QuickSearch::expected_us(const Placement& placement) const {
  const double us = times_the_estimate(placement.choice) * placement.estimate_us;
  return state_.cost_us(us, most_tokens(placement, state_.cluster.num_devices()));
}

std::vector<Placement> QuickSearch::draft(std::vector<PlacementChoice> choices, double draft_share,
                                          double share) {
  state_.settle();
  if (!state_.any_will_do) {
    std::erase_if(choices, [&](const PlacementChoice& choice) {
      const std::int64_t simulating =
          steps_of_simulating(state_.num_devices(), most_tiles(state_.workload, choice));
      return !state_.fits(steps_of_placing_one(choice) + simulating, share);
    });
  }
  return trials_.place(state_.spend_on(choices, draft_share, [&](const PlacementChoice& choice) {
    return steps_of_placing_one(choice);
  }));
}

std::vector<Placement> QuickSearch::draft_tiles(int turns, double draft_share, double share) {
  has_drafted_tiles_ = true;
  return draft(quick_tile_choices(state_.workload, state_.cluster, state_.request, turns),
               draft_share, share);
}

std::vector<Tried> QuickSearch::simulate_best(std::vector<Placement> drafts, double share) {
  std::ranges::stable_sort(drafts, {},
                           [&](const Placement& placement) { return expected_us(placement); });
  std::vector<Tried> tried;
  for (const Placement& placement : drafts) {
    if (tried.size() == tuning::kQuickSimulated) break;
    const std::int64_t steps = steps_of_simulating(state_.num_devices(), num_tiles(placement));
    const double near_us = tuning::kNearQuick * state_.best.cost_us;
    if (state_.has_plan() && expected_us(placement) > near_us) break;
    state_.settle();
    // The first plan may use all that is left of the limits.
    const double limit = state_.has_plan() ? share : 1;
    auto pairs = likely_schedules(placement.choice.unit, placement.estimate_us)
                     .first(num_pairs_of(placement.choice.unit));
    while (pairs.size() > 1 && !state_.fits(std::ssize(pairs) * steps, limit)) {
      pairs = pairs.first(pairs.size() - 1);
    }
    const bool has_to = state_.any_will_do && !state_.has_plan();
    if (!state_.spend(std::ssize(pairs) * steps, limit) && !has_to) continue;
    for (Tried& one : trials_.try_pairs({&placement, 1}, pairs)) tried.push_back(std::move(one));
  }
  return tried;
}

std::vector<Tried> QuickSearch::try_likely(double draft_share, double share) {
  std::vector<Placement> all;
  if (state_.any_will_do || !is_lopsided_) all = draft(row_choices_, draft_share, share);
  const bool rows_look_good = std::ranges::any_of(all, [&](const Placement& placement) {
    return placement.estimate_us < tuning::kGoodTimesMean * mean_us_;
  });
  if (!rows_look_good) {
    std::vector<Placement> of_tiles =
        draft_tiles(all.empty() ? tuning::kQuickTileTurns : 1, draft_share, share);
    std::ranges::move(of_tiles, std::back_inserter(all));
  }
  return simulate_best(std::move(all), share);
}

std::vector<Tried> QuickSearch::try_tiles(double draft_share, double share) {
  const bool looks_good = state_.best.time_us < tuning::kGoodTimesMean * mean_us_;
  if (state_.has_plan() && (has_drafted_tiles_ || looks_good)) return {};
  return simulate_best(draft_tiles(1, draft_share, share), share);
}

std::vector<Tried> QuickSearch::try_uneven(double draft_share, double share) {
  return simulate_best(
      draft(quick_uneven_row_choices(state_.workload, state_.cluster, state_.request), draft_share,
            share),
      share);
}

}  // namespace contextile
