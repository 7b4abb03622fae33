#include "planner/auto/other_strategies.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include "base/parallel_for.h"
#include "contextile/extend/plan_build.h"
#include "contextile/planner.h"
#include "planner/auto/arrangement_load.h"
#include "planner/auto/auto_strategy.h"
#include "planner/auto/placement_choices.h"
#include "planner/auto/tuning.h"
#include "planner/timed_block_size.h"

namespace contextile {
namespace {

StrategyRequest request_of(const SearchState& state, const StrategyChoice& choice,
                           std::optional<std::int64_t> block_size) {
  StrategyRequest request = state.request;
  request.options = choice.options;
  request.progress = {};
  request.searched = {};
  request.disabled_phases = {};  // of this search
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
    std::stable_partition(others->begin(), others->end(),
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
  if (sizes.empty()) {
    const std::int64_t sequences = std::ssize(state_.workload.sequences);
    const bool by_search = strategy.deciding() == Deciding::kBySearch;
    std::int64_t steps = by_search ? steps_of_searching_strategy(devices, tokens, sequences)
                                   : steps_of_other_strategy(devices, tokens, sequences);
    if (request.block_size) {
      steps += steps_of_blocks(by_search, likely_tiles(state_.workload, *request.block_size));
    }
    quick_.push_back({choice, {}, steps});
    return;
  }
  if (request.block_size) sizes = {*request.block_size};
  for (const std::int64_t size : sizes) {
    const std::int64_t steps = steps_of_partitioning(devices, state_.workload.shape.kv_heads,
                                                     num_blocks(state_.workload, size),
                                                     likely_tiles(state_.workload, size));
    partitioning_.push_back({choice, size, steps});
  }
}

void OtherStrategies::try_likely(double draft_share, double share) {
  std::vector<std::size_t> by_rule;
  state_.settle();
  for (std::size_t i = 0; i < quick_.size(); ++i) {
    const Strategy& strategy = find_strategy(quick_[i].choice.name);
    if (strategy.deciding() != Deciding::kByRule) continue;
    if (state_.spend(quick_[i].arranging_steps, draft_share)) by_rule.push_back(i);
  }
  std::vector<Draft> best = draft_quick(by_rule, tuning::kLikelyOthers);
  for (Draft& likely : best) {
    if (is_hopeless(likely.least_cost_us)) break;
    state_.settle();
    // Without a plan the first may take what later phases would have.
    const double most_share = state_.has_plan() ? share : 1;
    if (!state_.spend(steps_of_simulating_only(likely.arrangement), most_share)) continue;
    Other& other = quick_[likely.index];
    other.is_done = true;
    keep_if_best(simulated(other, std::move(likely.arrangement)));
  }
  std::erase_if(quick_, [](const Other& other) { return other.is_done; });
}

std::vector<OtherStrategies::Draft> OtherStrategies::draft_quick(
    const std::vector<std::size_t>& of_quick, std::optional<std::size_t> most) {
  std::vector<Draft> best;
  std::mutex mutex;
  state_.progress.expect(std::ssize(of_quick));
  parallel_for(std::size_t{0}, of_quick.size(), [&](std::size_t i) {
    Other& other = quick_[of_quick[i]];
    Draft drafted = draft(other);
    drafted.index = of_quick[i];
    other.least_cost_us = drafted.least_cost_us;
    const std::scoped_lock lock(mutex);
    best.push_back(std::move(drafted));
    std::ranges::sort(best, {}, [](const Draft& d) { return std::pair(d.least_cost_us, d.index); });
    if (best.size() > most.value_or(best.size())) best.pop_back();
  });
  return best;
}

void OtherStrategies::try_any() {
  // The cheapest alone is often the slowest plan, and simulating it may take longer than drafting
  // several.
  if (quick_.empty()) return;
  std::vector<std::size_t> cheapest(quick_.size());
  std::iota(cheapest.begin(), cheapest.end(), std::size_t{0});
  std::ranges::stable_sort(cheapest, {}, [&](std::size_t i) { return quick_[i].arranging_steps; });
  const std::int64_t least_steps = quick_[cheapest.front()].arranging_steps;
  const std::int64_t most_steps = std::max(
      {tuning::kLastResortSteps, least_steps,
       std::min(tuning::kLastResortTimesCheapest * least_steps, tuning::kLastResortMostSteps)});
  std::int64_t steps = 0;
  auto end = std::ranges::find_if(cheapest, [&](std::size_t i) {
    steps += quick_[i].arranging_steps;
    return steps > most_steps;
  });
  // Those that follow need time, but may keep to a limit on tokens or memory.
  for (auto begin = cheapest.begin(); begin != cheapest.end() && !state_.has_allowed_plan();) {
    for (Draft& likely : draft_quick({begin, end})) {
      keep_if_best(simulated(quick_[likely.index], std::move(likely.arrangement)));
      if (state_.has_allowed_plan()) break;
    }
    begin = end;
    end += std::min<std::ptrdiff_t>(tuning::kOthersOfRound, cheapest.end() - end);
  }
}

void OtherStrategies::try_all(std::vector<Other>& others, double share) {
  std::erase_if(others, [&](const Other& other) {
    return other.least_cost_us && is_hopeless(*other.least_cost_us);
  });
  std::vector<Other> left = std::move(others);
  others.clear();
  while (!left.empty()) {
    // Without a plan the cheapest of all must be among those of the round.
    const auto end =
        left.begin() +
        (state_.has_plan() ? std::min(tuning::kOthersOfRound, std::ssize(left)) : std::ssize(left));
    const std::vector<Other> of_round(left.begin(), end);
    left.erase(left.begin(), end);
    const std::vector<Other> paid =
        state_.spend_on(of_round, share, [](const Other& other) { return other.arranging_steps; });
    if (paid.empty()) {
      others.insert(others.end(), of_round.begin(), of_round.end());
      continue;
    }
    std::ranges::move(try_round(paid, share), std::back_inserter(others));
  }
}

std::vector<OtherStrategies::Other> OtherStrategies::try_round(const std::vector<Other>& paid,
                                                               double share) {
  const bool has_plan = state_.has_plan();
  std::vector<Draft> drafts(paid.size());
  state_.progress.expect(std::ssize(paid));
  parallel_for(std::size_t{0}, paid.size(), [&](std::size_t i) {
    if ((i > 0 || has_plan) && !state_.has_time_for(paid[i].arranging_steps, share)) return;
    drafts[i] = draft(paid[i]);
  });
  std::vector<std::size_t> likeliest(paid.size());
  std::iota(likeliest.begin(), likeliest.end(), std::size_t{0});
  std::ranges::stable_sort(likeliest, {}, [&](std::size_t i) { return drafts[i].least_cost_us; });
  std::vector<std::size_t> promising;
  std::vector<Other> left;
  for (const std::size_t i : likeliest) {
    if (drafts[i].least_cost_us == kNever) {  // not arranged
      left.push_back(paid[i]);
      continue;
    }
    if (is_hopeless(drafts[i].least_cost_us)) continue;
    const std::int64_t steps = steps_of_simulating_only(drafts[i].arrangement);
    const bool has_to = !has_plan && promising.empty();
    if (state_.spend(steps, share) || has_to) {
      promising.push_back(i);
    } else {
      left.push_back(paid[i]);
    }
  }
  std::vector<PlanCandidate> candidates(promising.size());
  state_.progress.expect(std::ssize(promising));
  parallel_for(std::size_t{0}, promising.size(), [&](std::size_t i) {
    candidates[i] = simulated(paid[promising[i]], std::move(drafts[promising[i]].arrangement));
    state_.progress.one_done("simulating other strategies");
  });
  for (PlanCandidate& candidate : candidates) keep_if_best(std::move(candidate));
  return left;
}

void OtherStrategies::keep_if_best(PlanCandidate candidate) {
  state_.count_tried(candidate.memory_bytes);
  if (candidate.cost_us < state_.best_other.cost_us) {
    state_.best_other = {candidate.cost_us, candidate.time_us, candidate.chosen};
  }
  state_.keep_if_best(std::move(candidate));
}

std::int64_t OtherStrategies::steps_of_simulating_only(const Arrangement& arrangement) const {
  const std::int64_t tiles = tiles_of_a_direction(arrangement);
  return steps_of_simulating(state_.num_devices(), tiles) -
         steps_of_arranging(state_.num_devices(), tiles);
}

OtherStrategies::Draft OtherStrategies::draft(const Other& other) const {
  Draft drafted;
  drafted.arrangement = find_strategy(other.choice.name)
                            .arrange(state_.workload, state_.cluster,
                                     request_of(state_, other.choice, other.block_size));
  drafted.least_cost_us = least_cost_us(drafted.arrangement);
  state_.progress.one_done("arranging other strategies");
  return drafted;
}

double OtherStrategies::least_cost_us(const Arrangement& arrangement) const {
  const double least_us =
      tuning::kBoundMargin * least_time_us(state_.workload, state_.cluster, arrangement);
  return state_.cost_us(least_us, most_tokens(arrangement, state_.cluster));
}

PlanCandidate OtherStrategies::simulated(const Other& other, Arrangement arrangement) const {
  PlanCandidate candidate;
  candidate.chosen = other.choice.name;
  const Plan plan = build_plan(state_.workload, state_.cluster, arrangement, {.digest = false});
  const PlanTimes times = times_of(plan, simulate(plan, state_.cluster), state_.memory_limit_bytes);
  candidate.time_us = times.sum_us();
  candidate.memory_bytes = times.memory_bytes;
  candidate.most_tokens = most_tokens(arrangement, state_.cluster);
  candidate.cost_us = state_.cost_us(candidate.time_us, candidate.most_tokens);
  candidate.tiles = tiles_of_a_direction(arrangement);
  candidate.arrange = [arrangement = std::move(arrangement)] { return arrangement; };
  return candidate;
}

}  // namespace contextile
