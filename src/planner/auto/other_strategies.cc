#include "planner/auto/other_strategies.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <string>
#include <utility>

#include "base/parallel_for.h"
#include "contextile/extend/plan_build.h"
#include "contextile/planner.h"
#include "planner/auto/arrangement_load.h"
#include "planner/auto/auto_strategy.h"
#include "planner/auto/placement_choices.h"
#include "planner/timed_block_size.h"

namespace contextile {
namespace {

// The lower bound of an arrangement counts for 1% less. With many devices the simulator computes
// shares of rates only now and then, so a plan may come out slightly below its bound. No
// measurement of the 1% is recorded; `bounds_bench` compares bounds with plans.
constexpr double kMargin = 0.99;
// Among the variants that decide by rule, the two with the least bound held the fastest within
// 0.05% on average over 112 workloads; the first alone takes 0.1 to 2.3% longer (2026-11-24).
constexpr std::size_t kLikely = 2;

StrategyRequest request_of(const SearchState& state, const StrategyChoice& choice,
                           std::optional<std::int64_t> block_size) {
  StrategyRequest request = state.request;
  request.options = choice.options;
  request.progress = {};
  request.searched = {};
  if (block_size) request.block_size = block_size;
  return request;
}

}  // namespace

OtherStrategies::OtherStrategies(SearchState& state, Candidates which) : state_(state) {
  if (which == Candidates::kOwn) return;
  for (const Strategy* strategy : strategies()) {
    if (strategy == &auto_strategy()) continue;
    for (auto& options : strategy->variants(state.workload, state.cluster, state.request)) {
      add(*strategy, {std::string(strategy->name()), std::move(options)});
    }
  }
  for (std::vector<Other>* others : {&quick_, &partitioning_}) {
    std::ranges::reverse(*others);
    std::ranges::stable_partition(*others,
                                  [](const Other& other) { return other.choice.options.empty(); });
  }
}

void OtherStrategies::add(const Strategy& strategy, const StrategyChoice& choice) {
  const StrategyRequest request = request_of(state_, choice, {});
  if (strategy.unsupported(state_.workload, state_.cluster, request)) return;
  // A strategy that chooses its own block size partitions even if the request names a size.
  StrategyRequest open = request;
  open.block_size.reset();
  std::vector<std::int64_t> sizes = timed_sizes(strategy, state_.workload, open);
  const std::int64_t devices = state_.num_devices();
  const std::int64_t tokens = state_.workload.num_tokens();
  const auto tiles_at = [&](std::int64_t size) {
    return static_cast<std::int64_t>(estimated_tiles(state_.workload, size));
  };
  if (sizes.empty()) {
    const std::int64_t sequences = std::ssize(state_.workload.sequences);
    std::int64_t steps = strategy.deciding() == Deciding::kBySearch
                             ? steps_of_searching_strategy(devices, tokens, sequences)
                             : steps_of_other_strategy(devices, tokens, sequences);
    if (request.block_size) steps += steps_of_simulating(devices, tiles_at(*request.block_size));
    quick_.push_back({choice, {}, steps});
    return;
  }
  if (request.block_size) sizes = {*request.block_size};
  for (const std::int64_t size : sizes) {
    const std::int64_t steps =
        steps_of_partitioning(devices, num_blocks(state_.workload, size), tiles_at(size));
    partitioning_.push_back({choice, size, steps});
  }
}

void OtherStrategies::try_likely(double share_of_arranging, double share) {
  constexpr std::int64_t kPartOfArranging = 8;  // arranging takes 1/8 of a strategy's steps
  std::vector<std::size_t> by_rule;
  state_.settle();
  for (std::size_t i = 0; i < quick_.size(); ++i) {
    const std::int64_t steps = quick_[i].steps / kPartOfArranging;
    const Strategy& strategy = find_strategy(quick_[i].choice.name);
    if (strategy.deciding() != Deciding::kByRule) continue;
    if (state_.take(steps, share_of_arranging)) by_rule.push_back(i);
  }
  struct Likely {
    double least_cost_us = kNever;
    std::size_t index = 0;
    Arrangement arrangement;
  };
  std::vector<Likely> best;
  std::mutex mutex;
  state_.progress.expect(std::ssize(by_rule));
  parallel_for(std::size_t{0}, by_rule.size(), [&](std::size_t i) {
    Likely likely;
    likely.index = by_rule[i];
    likely.arrangement = arranged(quick_[by_rule[i]]);
    likely.least_cost_us = least_cost_us(likely.arrangement);
    state_.progress.one_done("arranging other strategies");
    const std::scoped_lock lock(mutex);
    best.push_back(std::move(likely));
    std::ranges::sort(best, {},
                      [](const Likely& l) { return std::pair(l.least_cost_us, l.index); });
    if (best.size() > kLikely) best.pop_back();
  });
  for (Likely& likely : best) {
    const std::int64_t tiles = tiles_of_a_direction(likely.arrangement);
    const std::int64_t steps = steps_of_simulating(state_.num_devices(), tiles) -
                               steps_of_arranging(state_.num_devices(), tiles);
    state_.settle();
    if (!state_.take(steps, share)) continue;
    Other& other = quick_[likely.index];
    PlanCandidate candidate =
        candidate_of(other, std::move(likely.arrangement), likely.least_cost_us);
    other.is_done = true;
    if (candidate.chosen.empty()) break;
    state_.count_tried(candidate.memory_bytes);
    state_.keep_if_best(std::move(candidate));
  }
  std::erase_if(quick_, [](const Other& other) { return other.is_done; });
}

void OtherStrategies::try_all(std::vector<Other>& others, double share) {
  const std::vector<Other> taken =
      state_.affordable(others, share, [](const Other& other) { return other.steps; });
  if (taken.empty()) return;
  others.clear();
  std::vector<PlanCandidate> candidates(taken.size());
  const bool has_plan = state_.has_plan();
  state_.progress.expect(std::ssize(taken));
  parallel_for(std::size_t{0}, taken.size(), [&](std::size_t i) {
    if ((i > 0 || has_plan) && !state_.has_time_for(taken[i].steps, share)) return;
    Arrangement arrangement = arranged(taken[i]);
    const double least_us = least_cost_us(arrangement);
    candidates[i] = candidate_of(taken[i], std::move(arrangement), least_us);
    state_.progress.one_done("simulating other strategies");
  });
  for (PlanCandidate& candidate : candidates) {
    if (candidate.chosen.empty()) continue;
    state_.count_tried(candidate.memory_bytes);
    state_.keep_if_best(std::move(candidate));
  }
}

double OtherStrategies::least_cost_us(const Arrangement& arrangement) const {
  const double least_us = kMargin * least_time_us(state_.workload, state_.cluster, arrangement);
  return state_.cost_us(least_us, most_tokens(arrangement, state_.cluster));
}

Arrangement OtherStrategies::arranged(const Other& other) const {
  return find_strategy(other.choice.name)
      .arrange(state_.workload, state_.cluster, request_of(state_, other.choice, other.block_size));
}

PlanCandidate OtherStrategies::candidate_of(const Other& other, Arrangement arrangement,
                                            double least_cost_us) const {
  PlanCandidate candidate;
  if (least_cost_us >= state_.best.cost_us) return candidate;
  candidate.chosen = other.choice.name;
  const Plan plan = build_plan(state_.workload, state_.cluster, arrangement, {.digest = false});
  const PlanTimes times = times_of(plan, simulate(plan, state_.cluster), state_.memory_limit_bytes);
  candidate.time_us = times.sum_us();
  candidate.memory_bytes = times.memory_bytes;
  candidate.cost_us = state_.cost_us(candidate.time_us, most_tokens(arrangement, state_.cluster));
  candidate.tiles = tiles_of_a_direction(arrangement);
  candidate.arrange = [arrangement = std::move(arrangement)] { return arrangement; };
  return candidate;
}

}  // namespace contextile
