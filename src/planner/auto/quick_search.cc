#include "planner/auto/quick_search.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "planner/auto/placement_choices.h"
#include "planner/auto/schedule_rules.h"

namespace contextile {
namespace {

// The factors of times_the_estimate are fitted (see there). No measurement of the others is
// recorded: they balance a first plan within 50 ms against the quality of later ones. Judge a
// change with `build/auto_bench --devices 32 --seed 11 --clusters dgx-h200 --kv-heads 8`, which
// also prints the search that has 50 ms and one thread, and with `build/budget_bench`.
constexpr std::size_t kSimulated = 3;  // of the placements, at most
// Placements other than the first must be expected within this multiple of the best so far.
constexpr double kNearQuick = 1.15;
// A batch is lopsided if the rows of one block take this much of the mean device's work, and this
// many times as much as their tokens would on average.
constexpr double kMuchOfDevice = 0.7;
constexpr double kTimesTheMean = 10;
// Rows look good if their placement is estimated to take less than this multiple of the mean work.
constexpr double kGood = 2;
constexpr int kTurns = 3;  // placements of tiles, if there are none of rows

// Geometric mean of simulated time over estimate. Fitted on 2026-11-24 to quick placements of seed
// 5; on the 112 workloads of seed 33 it is 1.08, 1.09, 1.23 and 1.13. To fit it again: plan
// with `auto:candidates=own`, simulate every quick placement and average log(time / estimate) for
// each kind.
double times_the_estimate(const PlacementChoice& choice) {
  switch (choice.unit) {
    case PlacedUnit::kRows:
      return 1.08;
    case PlacedUnit::kSpreadRows:
      return 1.11;
    case PlacedUnit::kTiles:
      break;
  }
  return choice.head_groups == 1 ? 1.2 : 1.13;
}

// Rows are tried with the first of their schedules, tiles with two.
std::size_t num_pairs_of(PlacedUnit unit) { return unit == PlacedUnit::kTiles ? 2 : 1; }

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
    return us > kMuchOfDevice * mean_us_ &&
           us > kTimesTheMean * us_of_token * static_cast<double>(blocks.num_tokens(b));
  });
}

bool QuickSearch::waits_much() const {
  constexpr double kMuch = 1.5;
  return !row_choices_.empty() && state_.has_plan() && state_.best.time_us > kMuch * mean_us_;
}

std::int64_t QuickSearch::steps_of_placing_one(const PlacementChoice& choice) const {
  if (choice.unit != PlacedUnit::kTiles) return steps_of_rows(state_.workload, choice);
  return steps_of_tiles(state_.workload, state_.cluster, choice);
}

double QuickSearch::expected_us(const Placement& placement) const {
  const double us = times_the_estimate(placement.choice) * placement.estimate_us;
  return state_.cost_us(us, most_tokens(placement, state_.cluster.num_devices()));
}

std::vector<Placement> QuickSearch::place(std::vector<PlacementChoice> choices,
                                          double share_of_placing, double share) {
  state_.settle();
  if (!state_.any_will_do) {
    std::erase_if(choices, [&](const PlacementChoice& choice) {
      const std::int64_t simulating =
          steps_of_simulating(state_.num_devices(), most_tiles(state_.workload, choice));
      return !state_.fits(steps_of_placing_one(choice) + simulating, share);
    });
  }
  return trials_.place(state_.affordable(
      choices, share_of_placing,
      [&](const PlacementChoice& choice) { return steps_of_placing_one(choice); }));
}

std::vector<Placement> QuickSearch::tiles(int turns, double share_of_placing, double share) {
  has_placed_tiles_ = true;
  return place(quick_tile_choices(state_.workload, state_.cluster, state_.request, turns),
               share_of_placing, share);
}

std::vector<Tried> QuickSearch::simulate(std::vector<Placement> placements, double share) {
  std::ranges::stable_sort(placements, {},
                           [&](const Placement& placement) { return expected_us(placement); });
  std::vector<Tried> tried;
  for (const Placement& placement : placements) {
    if (tried.size() == kSimulated) break;
    const std::int64_t steps = steps_of_simulating(state_.num_devices(), num_tiles(placement));
    if (state_.has_plan() && expected_us(placement) > kNearQuick * state_.best.cost_us) break;
    state_.settle();
    // The first plan may use all that is left of the limits.
    const double limit = state_.has_plan() ? share : 1;
    auto pairs = likely_schedules(placement.choice.unit, placement.estimate_us)
                     .first(num_pairs_of(placement.choice.unit));
    while (pairs.size() > 1 && !state_.fits(std::ssize(pairs) * steps, limit)) {
      pairs = pairs.first(pairs.size() - 1);
    }
    const bool has_to = state_.any_will_do && !state_.has_plan();
    if (!state_.take(std::ssize(pairs) * steps, limit) && !has_to) continue;
    for (Tried& one : trials_.try_pairs({&placement, 1}, pairs)) tried.push_back(std::move(one));
  }
  return tried;
}

std::vector<Tried> QuickSearch::try_likely(double share_of_placing, double share) {
  std::vector<Placement> all;
  if (state_.any_will_do || !is_lopsided_) all = place(row_choices_, share_of_placing, share);
  const bool rows_look_good = std::ranges::any_of(
      all, [&](const Placement& placement) { return placement.estimate_us < kGood * mean_us_; });
  if (!rows_look_good) {
    std::vector<Placement> of_tiles = tiles(all.empty() ? kTurns : 1, share_of_placing, share);
    std::ranges::move(of_tiles, std::back_inserter(all));
  }
  return simulate(std::move(all), share);
}

std::vector<Tried> QuickSearch::try_tiles(double share_of_placing, double share) {
  if (state_.has_plan() && (has_placed_tiles_ || state_.best.time_us < kGood * mean_us_)) return {};
  return simulate(tiles(1, share_of_placing, share), share);
}

std::vector<Tried> QuickSearch::try_uneven(double share_of_placing, double share) {
  return simulate(place(quick_uneven_row_choices(state_.workload, state_.cluster, state_.request),
                        share_of_placing, share),
                  share);
}

}  // namespace contextile
