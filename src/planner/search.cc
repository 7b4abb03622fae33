#include "planner/search.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/parallel_for.h"
#include "contextile/plan_build.h"
#include "contextile/plan_stats.h"
#include "contextile/registry.h"
#include "planner/auto_strategy.h"
#include "planner/binding.h"
#include "planner/placement_search.h"
#include "planner/search_state.h"
#include "planner/timed_block_size.h"

namespace contextile {
namespace {

// Where time is limited, others go first, many of which are made in a millisecond, and on when
// placements have had their turn.
constexpr double kShareOfTimeForQuick = 0.25;
constexpr double kShareOfTimeForOthers = 0.8;

template <typename T>
void atomic_max(std::atomic<T>& most, T value) {
  T held = most;
  while (held < value && !most.compare_exchange_weak(held, value)) {
  }
}

// Every other strategy as a candidate.
class OtherStrategies {
 public:
  explicit OtherStrategies(SearchState& state) : state_(state) {}

  // Lists them, as far as limits allow.
  void list() { others_ = published(); }

  // Makes and times the others in parallel, as many as end in that share of the time, which leave
  // the list, and keeps the best of them and so far. Without any plan the first one in any case.
  void try_others(double share) {
    std::vector<Candidate> candidates(others_.size());
    std::atomic<std::int64_t> longest_us = 0;  // of a candidate so far
    std::atomic<std::size_t> next = 0;         // in order, whatever the threads' turns
    std::atomic<std::size_t> num_made = 0;
    state_.progress.expect(std::ssize(others_) - kMostPublished);
    parallel_for(std::size_t{0}, others_.size(), [&](std::size_t) {
      const std::size_t i = next++;
      if (!state_.has_time_for(longest_us, share) && (i > 0 || state_.has_plan())) return;
      const double began_us = state_.elapsed_us();
      candidates[i] = candidate_of(others_[i]);
      atomic_max(num_made, i + 1);
      atomic_max(longest_us, static_cast<std::int64_t>(state_.elapsed_us() - began_us));
      state_.progress.one_done("simulating other strategies");
    });
    others_.erase(others_.begin(), others_.begin() + static_cast<std::ptrdiff_t>(num_made.load()));
    for (Candidate& candidate : candidates) {
      if (candidate.chosen.empty()) continue;
      ++state_.tried;
      if (candidate.time_us < state_.best.time_us) state_.best = std::move(candidate);
    }
  }

 private:
  // All of them with every option they find worth trying, from the newest strategy to the oldest;
  // with a limit on steps what it allows, defaults first; with one on time those first that try one
  // block size, and of the others none that would not end in time.
  [[nodiscard]] std::vector<StrategyChoice> published() {
    std::vector<StrategyChoice> others;
    for (const Strategy* strategy : strategies()) {
      if (strategy == &auto_strategy()) continue;
      for (auto& options : strategy->variants(state_.workload, state_.cluster, state_.request)) {
        others.push_back({std::string(strategy->name()), std::move(options)});
      }
    }
    std::ranges::reverse(others);
    const auto num_sizes = [&](const StrategyChoice& choice) {
      const auto sizes = std::ssize(find_strategy(choice.name).block_sizes(request_of(choice)));
      return std::max<std::int64_t>(1, sizes);
    };
    const std::int64_t steps = steps_of_other_strategy(
        state_.num_devices(), state_.workload.num_tokens(), std::ssize(state_.workload.sequences));
    if (state_.options.budget_ms > 0) {
      std::ranges::stable_sort(others, {}, num_sizes);
      std::erase_if(others, [&](const StrategyChoice& choice) {
        return num_sizes(choice) > 1 && !state_.has_time_for(num_sizes(choice) * steps);
      });
    }
    if (!state_.budget.limited()) return others;
    std::ranges::stable_partition(
        others, [](const StrategyChoice& choice) { return choice.options.empty(); });
    std::erase_if(others, [&](const StrategyChoice& choice) {
      return !state_.budget.take(num_sizes(choice) * steps,
                                 choice.options.empty() ? kShareOfPublished : kShareOfOptions);
    });
    return others;
  }

  [[nodiscard]] StrategyRequest request_of(const StrategyChoice& choice) const {
    StrategyRequest request = state_.request;
    request.options = choice.options;
    request.progress = {};
    return request;
  }

  // Without a name where the strategy cannot do it.
  [[nodiscard]] Candidate candidate_of(const StrategyChoice& choice) const {
    Candidate candidate;
    const Strategy& strategy = find_strategy(choice.name);
    const StrategyRequest request = request_of(choice);
    if (strategy.unsupported(state_.workload, state_.cluster, request)) return candidate;
    candidate.arrangement = arrange_timed(strategy, state_.workload, state_.cluster, request);
    candidate.chosen = strategy.name();
    const Plan plan = build_plan(state_.workload, state_.cluster, candidate.arrangement);
    const PlanTimes times = times_of(plan, state_.cluster, simulate(plan, state_.cluster));
    candidate.time_us = times.forward_us + times.backward_us;
    return candidate;
  }

  SearchState& state_;
  std::vector<StrategyChoice> others_;  // that nobody has tried
};

}  // namespace

PlanTimes times_of(const Plan& plan, const Cluster& cluster, const Simulation& simulation) {
  PlanTimes times{simulation.forward ? simulation.forward->time_us : 0,
                  simulation.backward ? simulation.backward->time_us : 0};
  if (cluster.memory_bytes == 0) return times;
  const PlanStats stats = statistics(plan);
  const auto fits = [&](const std::optional<DirectionStats>& direction) {
    return !direction || direction->peak_memory_bytes <= cluster.memory_bytes;
  };
  if (!fits(stats.forward)) times.forward_us = kNever;
  if (!fits(stats.backward)) times.backward_us = kNever;
  return times;
}

SearchResult search(const Workload& workload, const Cluster& cluster,
                    const StrategyRequest& request, const AutoOptions& options) {
  SearchState state(workload, cluster, request, options);
  OtherStrategies others(state);
  PlacementSearch placements(state);
  const bool has_others = options.candidates == Candidates::kAll;
  if (has_others && options.budget_ms > 0) {
    others.list();
    others.try_others(kShareOfTimeForQuick);
  }
  placements.place_all();
  placements.try_placements();
  if (has_others && options.budget_ms == 0) others.list();
  others.try_others(kShareOfTimeForOthers);
  placements.improve();
  CONTEXTILE_CHECK(state.has_plan(),
                   "auto: expected a plan that fits {} bytes of device memory, found none in {} "
                   "candidates",
                   cluster.memory_bytes, state.tried);
  SearchResult result{.arrangement = std::move(state.best.arrangement),
                      .chosen = std::move(state.best.chosen),
                      .predicted_us = state.best.time_us,
                      .binding = {},
                      .candidates = state.tried};
  result.binding = binding_of(build_plan(workload, cluster, result.arrangement), cluster);
  return result;
}

}  // namespace contextile
