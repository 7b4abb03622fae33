#include "planner/placement_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <variant>

#include "base/parallel_for.h"
#include "contextile/plan_build.h"
#include "contextile/plan_estimate.h"

namespace contextile {
namespace {

std::string schedule_text(const Schedule& schedule) {
  if (const auto* slots = std::get_if<TimelineOptions>(&schedule)) {
    return fmt::format("{} slots, {} ahead", slots->slots, slots->ahead);
  }
  if (const auto* in_order = std::get_if<InOrderOptions>(&schedule)) {
    return fmt::format("{} in order, {} ahead", in_order->stages, in_order->ahead);
  }
  const auto& overlap = std::get<OverlapOptions>(schedule);
  return fmt::format("{} stages, {} ahead", overlap.stages, overlap.ahead);
}

std::string unit_text(PlacedUnit unit) {
  switch (unit) {
    case PlacedUnit::kTiles:
      return "tiles";
    case PlacedUnit::kRows:
      return "rows";
    case PlacedUnit::kSpreadRows:
      break;
  }
  return "spread rows";
}

std::int64_t num_tiles(const Placement& placement) {
  return std::ssize(placement.priced->tiles.all_tiles) * placement.choice.head_groups;
}

std::int64_t steps_of_placing_again(const Cluster& cluster, const Placement& placement) {
  const std::int64_t blocks = placement.priced->tiles.work.blocks.num_blocks();
  return steps_of_placing(cluster.num_devices(), blocks * placement.choice.head_groups,
                          num_tiles(placement));
}

// When every device is done with both directions.
std::vector<double> ends_of(const Simulation& simulation) {
  std::vector<double> ends;
  for (const auto* direction : {&simulation.forward, &simulation.backward}) {
    if (!*direction) continue;
    ends.resize((*direction)->devices.size());
    for (std::size_t d = 0; d < ends.size(); ++d) {
      ends[d] += (*direction)->time_us - (*direction)->devices[d].idle_us;
    }
  }
  return ends;
}

}  // namespace

void PlacementSearch::place_all() {
  retain_ = decide_retain(state_.workload, state_.cluster, state_.request, state_.options.retain);
  std::vector<PlacementChoice> choices =
      placement_choices(state_.workload, state_.cluster, state_.request);
  const auto steps_of = [&](const PlacementChoice& choice) {
    const std::int64_t blocks = state_.workload.num_tokens() / choice.block_size;
    const auto tiles =
        static_cast<std::int64_t>(estimated_tiles(state_.workload, choice.block_size));
    return steps_of_placing(state_.num_devices(), blocks * choice.head_groups,
                            tiles * choice.head_groups);
  };
  std::erase_if(choices, [&, first = !state_.has_plan()](const PlacementChoice& choice) mutable {
    const std::int64_t steps = steps_of(choice);
    if (std::exchange(first, false)) {
      state_.budget.force(steps);
      return false;
    }
    return !state_.has_time_for(steps) || !state_.budget.take(steps, kShareOfPlacing);
  });
  state_.progress.expect(std::ssize(choices) + kMostScheduled + kMostPublished + kMostImproved);
  for (Placement& placement : place(choices)) {
    Family& family = placement.choice.unit == PlacedUnit::kTiles ? tiles_ : rows_;
    family.placements.push_back(std::move(placement));
  }
  for (Family* family : {&tiles_, &rows_}) {
    std::ranges::stable_sort(family->placements, {}, &Placement::estimate_us);
  }
}

// In parallel; without those that would not end in time.
std::vector<Placement> PlacementSearch::place(std::span<const PlacementChoice> choices) {
  std::map<std::pair<std::int64_t, bool>, std::shared_ptr<const PricedTiles>> priced;
  for (const PlacementChoice& choice : choices) {
    const bool whole_rows = choice.unit != PlacedUnit::kTiles;
    std::shared_ptr<const PricedTiles>& tiles = priced[{choice.block_size, whole_rows}];
    if (tiles != nullptr) continue;
    tiles = std::make_shared<const PricedTiles>(price_tiles(
        state_.workload, state_.cluster, choice.block_size, state_.request.backward, whole_rows));
  }
  const bool has_plan = state_.has_plan();
  std::vector<Placement> placements(choices.size());
  parallel_for(std::size_t{0}, choices.size(), [&](std::size_t i) {
    if ((i > 0 || has_plan) && state_.out_of_time()) return;
    const auto& tiles = priced.at({choices[i].block_size, choices[i].unit != PlacedUnit::kTiles});
    placements[i] = contextile::place(state_.workload, state_.cluster, tiles, choices[i],
                                      state_.request, retain_);
    state_.progress.one_done("placing tiles");
  });
  std::erase_if(placements, [](const Placement& p) { return p.priced == nullptr; });
  return placements;
}

Arrangement PlacementSearch::arrange(const Placement& placement,
                                     const SchedulePair& schedules) const {
  return arrange_placement(state_.workload, state_.cluster, placement, state_.request, schedules,
                           retain_);
}

void PlacementSearch::take_if_best(const Tried& tried) {
  if (tried.time_us >= state_.best.time_us) return;
  const PlacementChoice& choice = tried.placement.choice;
  state_.best.time_us = tried.time_us;
  state_.best.chosen = "placement";
  state_.best.arrangement = arrange(tried.placement, tried.schedules);
  std::map<std::string, std::string>& options = state_.best.arrangement.options;
  options = {{"of", unit_text(choice.unit)},
             {"block_size", fmt::format("{}", choice.block_size)},
             {"head_groups", fmt::format("{}", choice.head_groups)},
             {"forward", schedule_text(tried.schedules.forward)}};
  if (choice.unit == PlacedUnit::kTiles) options["eps"] = fmt::format("{}", choice.eps);
  if (!state_.request.backward) return;
  options["backward"] = schedule_text(tried.schedules.backward);
  options["retained"] = retain_ ? "on" : "off";
}

void PlacementSearch::try_schedules(Family& family, std::vector<Placement> placements,
                                    std::span<const Schedule> schedules) {
  std::vector<PlanTimes> times(placements.size() * schedules.size());
  const bool has_plan = state_.has_plan();
  parallel_for(std::size_t{0}, times.size(), [&](std::size_t i) {
    if ((i > 0 || has_plan) && state_.out_of_time()) return;
    const Schedule& schedule = schedules[i % schedules.size()];
    const Plan plan = build_plan(state_.workload, state_.cluster,
                                 arrange(placements[i / schedules.size()], {schedule, schedule}));
    times[i] = times_of(plan, state_.cluster, simulate(plan, state_.cluster));
    state_.progress.one_done("simulating placements");
  });
  state_.tried += static_cast<std::int32_t>(std::ranges::count_if(
      times, [](const PlanTimes& t) { return t.forward_us < kNever || t.backward_us < kNever; }));
  for (std::size_t p = 0; p < placements.size(); ++p) {
    const auto of_placement = std::span(times).subspan(p * schedules.size(), schedules.size());
    const auto forward = std::ranges::min_element(of_placement, {}, &PlanTimes::forward_us);
    const auto backward = std::ranges::min_element(of_placement, {}, &PlanTimes::backward_us);
    const double time_us = forward->forward_us + backward->backward_us;
    if (time_us == kNever) continue;
    family.tried.push_back({std::move(placements[p]),
                            {schedules[static_cast<std::size_t>(forward - of_placement.begin())],
                             schedules[static_cast<std::size_t>(backward - of_placement.begin())]},
                            time_us});
  }
  if (family.tried.empty()) return;
  std::ranges::stable_sort(family.tried, {}, &Tried::time_us);
  take_if_best(family.tried.front());
}

// How many of the best placements to go on with, each placed `placings` times and simulated `plans`
// times: fewer where plans are large, none where the budget has no such share left.
std::size_t PlacementSearch::affordable(std::span<const Placement> placements, std::size_t most,
                                        double placings, std::int64_t plans, double share) {
  constexpr std::int64_t kTiles = 500'000;  // in plans of one schedule
  std::int64_t tiles = 0;
  most = std::min(most, placements.size());
  for (std::size_t p = 0; p < most; ++p) {
    const std::int64_t own = num_tiles(placements[p]);
    tiles += own;
    if (p > 0 && tiles > kTiles) return p;
    const std::int64_t steps =
        static_cast<std::int64_t>(
            placings * static_cast<double>(steps_of_placing_again(state_.cluster, placements[p]))) +
        plans * steps_of_simulating(state_.num_devices(), own);
    if (!state_.budget.take(steps, share)) return p;
  }
  return most;
}

void PlacementSearch::try_family(Family& family, std::size_t most,
                                 std::span<const Schedule> schedules, double share) {
  if (family.placements.empty()) return;
  std::size_t count = affordable(family.placements, most, 0, std::ssize(schedules), share);
  if (count == 0 && state_.has_plan()) return;
  if (count == 0) {  // one plan, whatever it costs
    schedules = schedules.first(1);
    count = 1;
    state_.budget.force(
        steps_of_simulating(state_.num_devices(), num_tiles(family.placements.front())));
  }
  family.placements.resize(count);
  try_schedules(family, std::exchange(family.placements, {}), schedules);
}

void PlacementSearch::try_placements() {
  constexpr double kTriedRows = 4;
  constexpr double kTriedTiles = 6;
  constexpr double kShareOfRows = 0.5;
  static const Schedule kRowSchedules[] = {
      TimelineOptions{2, 1}, OverlapOptions{2, 1}, InOrderOptions{2, 1},  InOrderOptions{1, 1},
      TimelineOptions{4, 1}, OverlapOptions{4, 1}, TimelineOptions{8, 1}, InOrderOptions{4, 1}};
  static const Schedule kSchedules[] = {OverlapOptions{8, 2}, TimelineOptions{4, 1},
                                        TimelineOptions{8, 1}, TimelineOptions{16, 2},
                                        OverlapOptions{2, 1}};
  const auto at_effort = [&](double count) {
    return static_cast<std::size_t>(std::max(1.0, count * state_.options.effort));
  };
  try_family(rows_, at_effort(kTriedRows), kRowSchedules, kShareOfRows);
  try_family(tiles_, at_effort(kTriedTiles), kSchedules, kShareOfSchedules);
}

void PlacementSearch::improve_family(Family& family, std::span<const Schedule> schedules) {
  constexpr double kNear = 1.15;  // times the best: others do not catch up
  constexpr std::size_t kImproved = 3;
  constexpr std::array kTighter = {1.0, 0.4};
  constexpr double kTimesTheSteps = 3;
  if (family.tried.empty() || family.tried.front().time_us > kNear * state_.best.time_us) return;
  std::vector<Placement> best;
  for (const Tried& tried : family.tried) {
    if (best.size() < kImproved) best.push_back(tried.placement);
  }
  const std::size_t count =
      affordable(best, kImproved, kTighter.size() * kTimesTheSteps,
                 static_cast<std::int64_t>(kTighter.size() * schedules.size()), 1);
  std::vector<PlacementChoice> choices;
  for (std::size_t p = 0; p < count; ++p) {
    for (std::size_t seed = 0; seed < kTighter.size(); ++seed) {
      PlacementChoice choice = best[p].choice;
      choice.effort = kTimesTheSteps * state_.options.effort;
      choice.seed += 1 + seed;
      choice.eps *= kTighter[seed];
      choices.push_back(choice);
    }
  }
  state_.progress.expect(static_cast<std::int64_t>(choices.size() * (1 + schedules.size())) -
                         kMostImproved / 2);
  try_schedules(family, place(choices), schedules);
}

void PlacementSearch::improve() {
  static const Schedule kRowSchedules[] = {
      TimelineOptions{2, 1}, TimelineOptions{3, 1}, TimelineOptions{6, 1},
      OverlapOptions{2, 1},  OverlapOptions{4, 1},  InOrderOptions{1, 1},
      InOrderOptions{2, 1},  InOrderOptions{3, 1},  InOrderOptions{4, 1}};
  static const Schedule kSchedules[] = {
      OverlapOptions{4, 2},  OverlapOptions{6, 6},   OverlapOptions{16, 4},
      OverlapOptions{32, 8}, TimelineOptions{4, 1},  TimelineOptions{6, 1},
      TimelineOptions{8, 1}, TimelineOptions{16, 2}, TimelineOptions{24, 2}};
  if (state_.out_of_time()) return;
  improve_family(rows_, kRowSchedules);
  improve_family(tiles_, kSchedules);
  rebalance();
}

void PlacementSearch::rebalance() {
  constexpr std::size_t kRebalanced = 4;
  constexpr double kNear = 1.1;  // times the best
  std::vector<Tried> best;
  for (const Tried& tried : rows_.tried) {
    if (best.size() == kRebalanced || tried.time_us > kNear * state_.best.time_us) break;
    best.push_back(tried);
  }
  parallel_for(std::size_t{0}, best.size(), [&](std::size_t i) {
    if (state_.out_of_time()) return;
    best[i] = rebalanced(best[i]);
  });
  for (const Tried& tried : best) take_if_best(tried);
}

// Device by device what ended late counts for more, and rows move on from where they are.
PlacementSearch::Tried PlacementSearch::rebalanced(const Tried& tried) const {
  constexpr int kRounds = 5;
  constexpr double kGain = 0.7;
  Tried best = tried;
  Placement placement = tried.placement;
  RowStart warm;
  warm.handicap_us.assign(static_cast<std::size_t>(state_.num_devices()), 0);
  double total_us = 0;
  for (const std::int64_t work_ns : placement.priced->work_ns) {
    total_us += 1e-3 * static_cast<double>(work_ns);
  }
  const double mean_us = total_us / static_cast<double>(state_.num_devices());
  for (int round = 0; round <= kRounds && !state_.out_of_time(); ++round) {
    const Plan plan =
        build_plan(state_.workload, state_.cluster, arrange(placement, tried.schedules));
    const Simulation simulation = simulate(plan, state_.cluster);
    const PlanTimes times = times_of(plan, state_.cluster, simulation);
    const double time_us = times.forward_us + times.backward_us;
    if (time_us < best.time_us) best = {placement, tried.schedules, time_us};
    if (round == kRounds) break;
    const std::vector<double> ends = ends_of(simulation);
    const double mean_end =
        std::accumulate(ends.begin(), ends.end(), 0.0) / static_cast<double>(ends.size());
    for (std::size_t d = 0; d < ends.size(); ++d) {
      warm.handicap_us[d] += kGain * (ends[d] / mean_end - 1) * mean_us;
    }
    warm.places = placement.places;
    PlacementChoice choice = placement.choice;
    ++choice.seed;
    placement = contextile::place(state_.workload, state_.cluster, placement.priced, choice,
                                  state_.request, retain_, &warm);
  }
  return best;
}

}  // namespace contextile
