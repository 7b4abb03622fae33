#include "planner/auto/placement_trials.h"

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
#include "contextile/base.h"
#include "contextile/extend/plan_build.h"
#include "planner/auto/tuning.h"

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

std::vector<double> ends_of(const std::optional<SimulatedDirection>& direction) {
  std::vector<double> ends;
  if (!direction) return ends;
  for (const DeviceTimes& device : direction->devices) {
    ends.push_back(direction->time_us - device.idle_us);
  }
  return ends;
}

}  // namespace

void TrialOutcome::adopt_faster(const TrialOutcome& other) {
  if (other.times.forward_us < times.forward_us) {
    times.forward_us = other.times.forward_us;
    ends.forward = other.ends.forward;
    schedules.forward = other.schedules.forward;
  }
  if (other.times.backward_us < times.backward_us) {
    times.backward_us = other.times.backward_us;
    ends.backward = other.ends.backward;
    schedules.backward = other.schedules.backward;
  }
}

std::int64_t most_tokens(const Placement& placed, std::int32_t num_devices) {
  const Placement& placement = placed.arranged();
  IdVector<Rank, std::int64_t> owned(IdRange<Rank>{num_devices});
  const Blocking& blocks = placement.priced->tiles.work.blocks;
  for (const BlockId b : IdRange<BlockId>(blocks.num_blocks())) {
    owned[placement.partition.owner[b]] += blocks.num_tokens(b);
  }
  return *std::ranges::max_element(owned);
}

std::int64_t num_tiles(const Placement& placed) {
  const Placement& placement = placed.arranged();
  const std::vector<Tile>& tiles = placement.priced->tiles.all_tiles;
  std::int64_t all = 0;
  for (const Tile& tile : tiles) {
    all += head_groups_of(placement.choice.head_groups, placement.block_head_groups, tile.q_block);
  }
  return all;
}

const std::shared_ptr<const PricedTiles>& PlacementTrials::priced(const PlacementChoice& choice) {
  const bool whole_rows = choice.unit != PlacedUnit::kTiles;
  std::shared_ptr<const PricedTiles>& priced = state_.priced[{choice.block_size, whole_rows}];
  if (priced == nullptr) {
    priced = std::make_shared<const PricedTiles>(price_tiles(
        state_.workload, state_.cluster,
        cut_into_tiles(state_.workload,
                       cut_sequences(state_.workload, choice.block_size, BandCuts::kEdges)),
        choice.block_size, state_.request.backward, whole_rows));
  }
  return priced;
}

std::vector<Placement> PlacementTrials::place(std::span<const PlacementChoice> choices) {
  std::vector<std::shared_ptr<const PricedTiles>> tiles;
  for (const PlacementChoice& choice : choices) tiles.push_back(priced(choice));
  const bool has_plan = state_.has_plan();
  std::vector<Placement> placements(choices.size());
  state_.progress.expect(std::ssize(choices));
  parallel_for(std::size_t{0}, choices.size(), [&](std::size_t i) {
    if ((i > 0 || has_plan) && state_.out_of_time()) return;
    placements[i] = contextile::place(state_.workload, state_.cluster, tiles[i], choices[i],
                                      state_.placing(retain_));
    state_.progress.one_done("placing tiles");
  });
  std::erase_if(placements, [](const Placement& p) { return p.priced == nullptr; });
  return placements;
}

TrialOutcome PlacementTrials::simulated(const Placement& placement,
                                        const SchedulePair& schedules) const {
  const Arrangement arrangement = arrange_placement(state_.workload, state_.cluster, placement,
                                                    state_.request, schedules, retain_);
  const Plan plan = build_plan(state_.workload, state_.cluster, arrangement, {.digest = false});
  const Simulation simulation = simulate(plan, state_.cluster);
  return {schedules,
          times_of(plan, simulation, state_.memory_limit_bytes),
          {ends_of(simulation.forward), ends_of(simulation.backward)}};
}

std::int64_t PlacementTrials::owned_tokens(const Placement& placement) const {
  if (state_.tokens.of_home) return *state_.tokens.of_home;
  return most_tokens(placement, state_.cluster.num_devices());
}

double PlacementTrials::cost_us(const Placement& placement, const PlanTimes& times) const {
  return state_.cost_us(times.forward_us + times.backward_us, owned_tokens(placement));
}

std::vector<TrialOutcome> PlacementTrials::simulate_all(
    std::span<const Placement* const> placements, std::span<const SchedulePair> pairs) {
  std::vector<TrialOutcome> outcomes(placements.size() * pairs.size());
  const bool has_plan = state_.has_plan();
  state_.progress.expect(std::ssize(outcomes));
  parallel_for(std::size_t{0}, outcomes.size(), [&](std::size_t i) {
    const Placement& placement = *placements[i % placements.size()];
    // Without a plan the first is simulated at any cost, so that the search returns one.
    const bool is_first = i == 0 && !has_plan;
    if (!is_first &&
        !state_.has_time_for(steps_of_simulating(state_.num_devices(), num_tiles(placement)))) {
      return;
    }
    // Ordered pair by pair, so that a short time covers all placements under the first pair.
    outcomes[i] = simulated(placement, pairs[i / placements.size()]);
    state_.progress.one_done("simulating placements");
  });
  std::vector<TrialOutcome> best(placements.size());
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (outcomes[i].times.was_tried()) state_.count_tried(outcomes[i].times.memory_bytes);
    best[i % placements.size()].adopt_faster(outcomes[i]);
  }
  return best;
}

std::vector<Tried> PlacementTrials::try_pairs(std::span<const Placement> placements,
                                              std::span<const SchedulePair> pairs) {
  std::vector<const Placement*> all;
  for (const Placement& placement : placements) all.push_back(&placement);
  const std::vector<TrialOutcome> best = simulate_all(all, pairs);
  std::vector<Tried> tried;
  for (std::size_t p = 0; p < placements.size(); ++p) {
    if (best[p].times.sum_us() == kNever) continue;
    tried.push_back({placements[p], best[p], cost_us(placements[p], best[p].times)});
    keep_if_best(tried.back());
  }
  return tried;
}

void PlacementTrials::try_pairs_again(std::span<Tried> tried, std::span<const SchedulePair> pairs) {
  std::vector<const Placement*> all;
  for (const Tried& one : tried) all.push_back(&one.placement);
  const std::vector<TrialOutcome> best = simulate_all(all, pairs);
  for (std::size_t p = 0; p < tried.size(); ++p) {
    tried[p].outcome.adopt_faster(best[p]);
    tried[p].cost_us = cost_us(tried[p].placement, tried[p].outcome.times);
    keep_if_best(tried[p]);
  }
}

Tried PlacementTrials::rebalanced(const Tried& tried, int rounds) const {
  const std::int64_t steps = steps_of_simulating(state_.num_devices(), num_tiles(tried.placement));
  Tried best = tried;
  Tried last = tried;
  RowStart warm;
  warm.handicap_us.assign(static_cast<std::size_t>(state_.num_devices()), 0);
  const double mean_us = mean_work_us(*tried.placement.priced, state_.num_devices());
  for (int round = 0; round < rounds && state_.has_time_for(steps); ++round) {
    std::vector<double> ends = last.outcome.ends.forward;
    ends.resize(warm.handicap_us.size(), 0);
    const std::vector<double>& backward = last.outcome.ends.backward;
    for (std::size_t d = 0; d < backward.size(); ++d) ends[d] += backward[d];
    // A device that ends later than the mean gets a larger handicap, so the next placement gives it
    // less work.
    const double mean_end =
        std::accumulate(ends.begin(), ends.end(), 0.0) / static_cast<double>(ends.size());
    for (std::size_t d = 0; d < ends.size(); ++d) {
      warm.handicap_us[d] += tuning::kHandicapGain * (ends[d] / mean_end - 1) * mean_us;
    }
    warm.places = last.placement.places;
    PlacementChoice choice = last.placement.choice;
    ++choice.seed;
    last.placement = contextile::place(state_.workload, state_.cluster, tried.placement.priced,
                                       choice, state_.placing(retain_), &warm);
    last.outcome = simulated(last.placement, tried.outcome.schedules);
    last.cost_us = cost_us(last.placement, last.outcome.times);
    if (last.cost_us < best.cost_us) best = last;
  }
  return best;
}

void PlacementTrials::simulate_again(Tried& tried) const {
  tried.outcome = simulated(tried.placement, tried.outcome.schedules);
  tried.cost_us = cost_us(tried.placement, tried.outcome.times);
}

void PlacementTrials::keep_if_best(const Tried& tried) {
  if (tried.cost_us >= state_.best.cost_us) return;
  const PlacementChoice& choice = tried.placement.choice;
  std::map<std::string, std::string> options = {
      {"of", unit_text(choice.unit)},
      {"block_size", fmt::format("{}", choice.block_size)},
      {"head_groups", fmt::format("{}", choice.head_groups)},
      {"forward", schedule_text(tried.outcome.schedules.forward)}};
  if (choice.unit == PlacedUnit::kTiles) options["eps"] = fmt::format("{}", choice.eps);
  if (state_.request.backward) {
    options["backward"] = schedule_text(tried.outcome.schedules.backward);
    options["retained"] = retain_ ? "on" : "off";
  }
  PlanCandidate candidate{
      .cost_us = tried.cost_us,
      .time_us = tried.outcome.times.sum_us(),
      .chosen = "placement",
      .most_tokens = owned_tokens(tried.placement),
      .tiles = num_tiles(tried.placement),
      .arranging_steps = steps_of_arranging(state_.num_devices(), num_tiles(tried.placement)),
      .arrange = {}};
  // The candidate keeps the placement only; its arrangement is made again if it wins.
  candidate.arrange = [&state = state_, retain = retain_, placement = tried.placement,
                       schedules = tried.outcome.schedules, options = std::move(options)] {
    Arrangement arrangement = arrange_placement(state.workload, state.cluster, placement,
                                                state.request, schedules, retain);
    arrangement.options = options;
    return arrangement;
  };
  state_.keep_if_best(std::move(candidate));
}

}  // namespace contextile
