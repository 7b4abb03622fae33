// State that the parts of a search share: its limits, its progress, the best candidate so far.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/extend/strategies.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/simulate.h"
#include "contextile/workload.h"
#include "planner/auto/arrangement_load.h"
#include "planner/auto/placement.h"
#include "planner/auto/search_budget.h"
#include "planner/auto/tuning.h"
#include "strategy/schedule/token_alignment.h"

namespace contextile {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// An arrangement, made on first use, with its predicted time.
struct PlanCandidate {
  double cost_us = kNever;        // SearchState::cost_us
  double time_us = kNever;        // infinity: not tried, or does not fit the device
  std::int64_t memory_bytes = 0;  // PlanTimes::memory_bytes
  std::string chosen;
  std::int64_t most_tokens = 0;  // that a device owns
  std::int64_t tiles = 0;        // of a direction
  std::int64_t arranging_steps = 0;
  std::function<Arrangement()> arrange;
};

// The best plan of another strategy so far.
struct BestOther {
  double cost_us = kNever;
  double time_us = kNever;
  std::string name;
};

// Bytes that a device may need in a direction: its memory, if that is known, and no more than the
// request allows. Empty: no limit.
[[nodiscard]] std::optional<std::int64_t> memory_limit(const Cluster& cluster,
                                                       const StrategyRequest& request);

// A plan's times on a cluster; kNever for a direction that exceeds the memory limit.
struct PlanTimes {
  double forward_us = kNever;
  double backward_us = kNever;
  std::int64_t memory_bytes = 0;  // of the device that needs most; 0: there is no limit

  [[nodiscard]] double sum_us() const { return forward_us + backward_us; }
  [[nodiscard]] bool was_tried() const {
    return memory_bytes > 0 || forward_us < kNever || backward_us < kNever;
  }
};
[[nodiscard]] PlanTimes times_of(const Plan& plan, const Simulation& simulation,
                                 std::optional<std::int64_t> memory_limit_bytes);

// The cost of tokens on a device (AutoOptions::tokens).
struct TokenRule {
  std::int64_t cap = 0;  // that a device may own; 0: none
  double us = 0;         // of a token of the fullest device, all passes
  // Tokens of the fullest device if a home layout says who owns which. No candidate can change it.
  std::optional<std::int64_t> of_home = {};
  std::int64_t mean = 0;         // of a device, rounded up
  std::int64_t placing_cap = 0;  // PlacingRules::token_cap
  std::int64_t level_cap = 0;    // LevelRule::cap
};
[[nodiscard]] TokenRule token_rule(const Workload& workload, const Cluster& cluster,
                                   const StrategyRequest& request, const AutoOptions& options);

// Number of threads that a search uses.
[[nodiscard]] std::int64_t num_threads();

// The steps that a search may spend: as requested, as its threads have time for, or more than all
// but the largest batches need.
[[nodiscard]] std::int64_t step_limit(const AutoOptions& options, std::int64_t devices);

struct SearchState {
  SearchState(const Workload& the_workload, const Cluster& the_cluster,
              const StrategyRequest& the_request, const AutoOptions& the_options)
      : workload(the_workload),
        cluster(the_cluster),
        request(the_request),
        options(the_options),
        budget(step_limit(the_options, the_cluster.num_devices())),
        progress(the_request.progress),
        start(std::chrono::steady_clock::now()),
        tokens(token_rule(the_workload, the_cluster, the_request, the_options)),
        memory_limit_bytes(memory_limit(the_cluster, the_request)) {}

  // The cost by which candidates are compared: the time of a plan whose fullest device owns
  // `most_tokens` tokens, and that of the linear layers of those above the mean if tokens have a
  // price. All plans need the rest. Plans of more tokens than the cap win only if there is no
  // other. If a home layout decides who owns which tokens, only the time counts.
  [[nodiscard]] double cost_us(double time_us, std::int64_t most_tokens) const {
    if (tokens.of_home) return time_us;
    if (tokens.cap > 0 && most_tokens > tokens.cap) time_us *= tuning::kOverTokenCapFactor;
    return time_us + tokens.us * static_cast<double>(most_tokens - tokens.mean);
  }
  // Time of the best candidate: of its attention, and of its linear layers if tokens have a price.
  [[nodiscard]] double objective_us() const {
    return best.time_us + tokens.us * static_cast<double>(best.most_tokens);
  }
  [[nodiscard]] PlacingRules placing(bool retain) const {
    return {.wire = request.wire.value_or(Dtype::kF32),
            .backward = request.backward,
            .retain = retain,
            .token_cap = tokens.placing_cap,
            .token_us = tokens.of_home ? 0 : tokens.us,
            .level = {.cap = tokens.level_cap,
                      .alignment = aligns_tokens(request) ? &request : nullptr}};
  }

  [[nodiscard]] double elapsed_us() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
  }
  [[nodiscard]] bool out_of_time() const { return !has_time_for(0); }
  // Returns true if that many steps, each about a microsecond, end in that share of the time.
  [[nodiscard]] bool has_time_for(std::int64_t steps, double share = 1) const {
    if (options.budget_ms == 0) return true;
    const double limit_us = 1e3 * static_cast<double>(options.budget_ms) - reserve_us;
    return elapsed_us() + static_cast<double>(steps) < share * limit_us;
  }
  // Makes the candidate the best if it is better. The rest of the time must suffice to arrange it.
  void keep_if_best(PlanCandidate candidate) {
    if (candidate.cost_us >= best.cost_us) return;
    best = std::move(candidate);
    reserve_us = static_cast<double>(best.arranging_steps);
  }
  // Counts a plan that was simulated and needs that much memory.
  void count_tried(std::int64_t memory_bytes) {
    ++tried;
    least_memory_bytes = std::min(least_memory_bytes, memory_bytes);
  }
  // All work that steps were spent on is done. A limit in time then counts its time, not the
  // estimate.
  void settle() {
    if (options.budget_ms == 0 || options.steps > 0 || options.steps_per_device > 0) return;
    budget.correct(static_cast<std::int64_t>(elapsed_us()) * num_threads());
  }
  // Returns true if the steps fit into that share of all limits.
  [[nodiscard]] bool fits(std::int64_t steps, double share) const {
    return has_time_for(steps, share) && budget.fits(steps, share);
  }
  // Spends the steps of the next work if they fit into that share of all limits.
  [[nodiscard]] bool spend(std::int64_t steps, double share) {
    return has_time_for(steps, share) && budget.spend(steps, share);
  }
  // Spends the steps of those choices that fit and returns them. If there is no plan yet and none
  // fits, returns the cheapest choice if it fits into the whole limits or if any choice will do.
  template <typename Choice, typename Steps>
  [[nodiscard]] std::vector<Choice> spend_on(const std::vector<Choice>& choices, double share,
                                             const Steps& steps_of) {
    settle();
    std::vector<Choice> paid;
    std::ranges::copy_if(choices, std::back_inserter(paid),
                         [&](const Choice& choice) { return spend(steps_of(choice), share); });
    if (!paid.empty() || choices.empty() || has_plan()) return paid;
    const auto cheapest = std::ranges::min_element(choices, {}, steps_of);
    if (spend(steps_of(*cheapest), 1) || any_will_do) paid.push_back(*cheapest);
    return paid;
  }
  [[nodiscard]] bool has_plan() const { return best.cost_us < kNever; }
  // True if there is a plan and it keeps to the requested token limit, which verification checks.
  [[nodiscard]] bool has_allowed_plan() const {
    return has_plan() && (!request.limits.tokens || best.most_tokens <= tokens.cap);
  }
  [[nodiscard]] std::int64_t num_devices() const { return cluster.num_devices(); }

  const Workload& workload;
  const Cluster& cluster;
  const StrategyRequest& request;
  const AutoOptions& options;
  StepBudget budget;
  SearchProgress progress;
  std::chrono::steady_clock::time_point start;
  TokenRule tokens;
  std::optional<std::int64_t> memory_limit_bytes;
  // Tiles by block size and whether rows are whole.
  std::map<std::pair<std::int64_t, bool>, std::shared_ptr<const PricedTiles>> priced;
  bool any_will_do = false;  // nothing fitted the limits
  double reserve_us = 0;     // of a limited time, for the end
  PlanCandidate best;
  BestOther best_other;
  std::int32_t tried = 0;                                                      // plans simulated
  std::int64_t least_memory_bytes = std::numeric_limits<std::int64_t>::max();  // of those
};

}  // namespace contextile
