#include "planner/placement_trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <variant>

#include "base/parallel_for.h"
#include "contextile/id_vector.h"
#include "contextile/plan_build.h"

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

std::int64_t most_tokens(const Placement& placement, std::int32_t num_devices) {
  IdVector<Rank, std::int64_t> owned(IdRange<Rank>{num_devices});
  const Blocking& blocks = placement.priced->tiles.work.blocks;
  for (const BlockId b : IdRange<BlockId>(blocks.num_blocks())) {
    owned[placement.partition.owner[b]] += blocks.num_tokens(b);
  }
  return *std::ranges::max_element(owned);
}

std::int64_t num_tiles(const Placement& placement) {
  const std::vector<Tile>& tiles = placement.priced->tiles.all_tiles;
  std::int64_t all = 0;
  for (const Tile& tile : tiles) {
    all += head_groups_of(placement.choice.head_groups, placement.block_head_groups, tile.q_block);
  }
  return all;
}

std::vector<Placement> PlacementTrials::place(std::span<const PlacementChoice> choices) {
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
  state_.progress.expect(std::ssize(choices));
  parallel_for(std::size_t{0}, choices.size(), [&](std::size_t i) {
    if ((i > 0 || has_plan) && state_.out_of_time()) return;
    const auto& tiles = priced.at({choices[i].block_size, choices[i].unit != PlacedUnit::kTiles});
    placements[i] = contextile::place(state_.workload, state_.cluster, tiles, choices[i],
                                      state_.placing(retain_));
    state_.progress.one_done("placing tiles");
  });
  std::erase_if(placements, [](const Placement& p) { return p.priced == nullptr; });
  return placements;
}

Arrangement PlacementTrials::arrange(const Placement& placement,
                                     const SchedulePair& schedules) const {
  return arrange_placement(state_.workload, state_.cluster, placement, state_.request, schedules,
                           retain_);
}

Simulation PlacementTrials::simulated(const Placement& placement, const SchedulePair& schedules,
                                      PlanTimes& times) const {
  const Plan plan = build_plan(state_.workload, state_.cluster, arrange(placement, schedules));
  Simulation simulation = simulate(plan, state_.cluster);
  times = times_of(plan, simulation, state_.memory_limit_bytes);
  return simulation;
}

double PlacementTrials::cost_us(const Placement& placement, const PlanTimes& times) const {
  return state_.cost_us(times.forward_us + times.backward_us,
                        most_tokens(placement, state_.cluster.num_devices()));
}

std::vector<PlacementTrials::Best> PlacementTrials::simulate_all(
    std::span<const Placement* const> placements, std::span<const SchedulePair> pairs) {
  std::vector<PlanTimes> times(placements.size() * pairs.size());
  const bool has_plan = state_.has_plan();
  state_.progress.expect(std::ssize(times));
  parallel_for(std::size_t{0}, times.size(), [&](std::size_t i) {
    const Placement& placement = *placements[i % placements.size()];
    const bool is_first = i == 0 && !has_plan;
    if (!is_first &&
        !state_.has_time_for(steps_of_simulating(state_.num_devices(), num_tiles(placement)))) {
      return;
    }
    (void)simulated(placement, pairs[i / placements.size()], times[i]);
    state_.progress.one_done("simulating placements");
  });
  std::vector<Best> best(placements.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    const SchedulePair& pair = pairs[i / placements.size()];
    Best& of_placement = best[i % placements.size()];
    if (times[i].was_tried()) state_.count_tried(times[i].memory_bytes);
    if (times[i].forward_us < of_placement.times.forward_us) {
      of_placement.times.forward_us = times[i].forward_us;
      of_placement.schedules.forward = pair.forward;
    }
    if (times[i].backward_us < of_placement.times.backward_us) {
      of_placement.times.backward_us = times[i].backward_us;
      of_placement.schedules.backward = pair.backward;
    }
  }
  return best;
}

std::vector<Tried> PlacementTrials::try_pairs(std::span<const Placement> placements,
                                              std::span<const SchedulePair> pairs) {
  std::vector<const Placement*> all;
  for (const Placement& placement : placements) all.push_back(&placement);
  const std::vector<Best> best = simulate_all(all, pairs);
  std::vector<Tried> tried;
  for (std::size_t p = 0; p < placements.size(); ++p) {
    if (best[p].times.sum_us() == kNever) continue;
    tried.push_back(
        {placements[p], best[p].schedules, best[p].times, cost_us(placements[p], best[p].times)});
    take_if_best(tried.back());
  }
  return tried;
}

void PlacementTrials::try_pairs_again(std::span<Tried> tried, std::span<const SchedulePair> pairs) {
  std::vector<const Placement*> all;
  for (const Tried& one : tried) all.push_back(&one.placement);
  const std::vector<Best> best = simulate_all(all, pairs);
  for (std::size_t p = 0; p < tried.size(); ++p) {
    if (best[p].times.forward_us < tried[p].times.forward_us) {
      tried[p].times.forward_us = best[p].times.forward_us;
      tried[p].schedules.forward = best[p].schedules.forward;
    }
    if (best[p].times.backward_us < tried[p].times.backward_us) {
      tried[p].times.backward_us = best[p].times.backward_us;
      tried[p].schedules.backward = best[p].schedules.backward;
    }
    tried[p].cost_us = cost_us(tried[p].placement, tried[p].times);
    take_if_best(tried[p]);
  }
}

Tried PlacementTrials::rebalanced(const Tried& tried, int rounds) const {
  constexpr double kGain = 0.7;
  const std::int64_t steps = steps_of_simulating(state_.num_devices(), num_tiles(tried.placement));
  Tried best = tried;
  Placement placement = tried.placement;
  RowStart warm;
  warm.handicap_us.assign(static_cast<std::size_t>(state_.num_devices()), 0);
  const double mean_us = mean_work_us(*placement.priced, state_.num_devices());
  for (int round = 0; round <= rounds && state_.has_time_for(steps); ++round) {
    PlanTimes times;
    const Simulation simulation = simulated(placement, tried.schedules, times);
    const double cost = cost_us(placement, times);
    if (cost < best.cost_us) best = {placement, tried.schedules, times, cost};
    if (round == rounds) break;
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
                                  state_.placing(retain_), &warm);
  }
  return best;
}

void PlacementTrials::take_if_best(const Tried& tried) {
  if (tried.cost_us >= state_.best.cost_us) return;
  const PlacementChoice& choice = tried.placement.choice;
  PlanCandidate candidate{.cost_us = tried.cost_us,
                          .time_us = tried.times.sum_us(),
                          .chosen = "placement",
                          .arrangement = arrange(tried.placement, tried.schedules)};
  std::map<std::string, std::string>& options = candidate.arrangement.options;
  options = {{"of", unit_text(choice.unit)},
             {"block_size", fmt::format("{}", choice.block_size)},
             {"head_groups", fmt::format("{}", choice.head_groups)},
             {"forward", schedule_text(tried.schedules.forward)}};
  if (choice.unit == PlacedUnit::kTiles) options["eps"] = fmt::format("{}", choice.eps);
  if (state_.request.backward) {
    options["backward"] = schedule_text(tried.schedules.backward);
    options["retained"] = retain_ ? "on" : "off";
  }
  state_.keep_if_best(std::move(candidate));
}

}  // namespace contextile
