#include "planner/auto/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/extend/plan_build.h"
#include "contextile/plan.h"
#include "planner/auto/binding.h"
#include "planner/auto/placement_choices.h"
#include "planner/auto/search_phases.h"
#include "planner/auto/search_state.h"
#include "planner/auto/tuning.h"
#include "planner/timed_block_size.h"

namespace contextile {
namespace {

// The phase that found the best candidate.
std::string last_improved(const std::vector<SearchPhase>& phases) {
  const auto last = std::ranges::find_if(phases.rbegin(), phases.rend(), &SearchPhase::improved);
  return last == phases.rend() ? "" : last->name;
}

// Throws unless the search has found a plan: every candidate may need too much memory, and without
// the phases that are a last resort the limits may have left none.
void check_found(const SearchState& state) {
  if (state.has_plan()) return;
  const std::vector<std::string>& disabled = state.request.disabled_phases;
  const std::string without =
      disabled.empty() ? "" : fmt::format(" (without the phases {})", fmt::join(disabled, ", "));
  CONTEXTILE_CHECK(state.tried > 0 && state.memory_limit_bytes,
                   "auto: expected a candidate within the limits of the search, found none{}",
                   without);
  fail_argument(
      "auto: expected a plan that needs at most {} bytes of a device ({}), found {} in the leanest "
      "of {} candidates{}",
      *state.memory_limit_bytes,
      state.memory_limit_bytes == state.request.limits.memory_bytes ? "the memory limit"
                                                                    : "its memory",
      state.least_memory_bytes, state.tried, without);
}

// The tokens whose linear layers take as long as one more message in every layer and direction.
// Moving fewer of them to another device does not pay.
std::int64_t tokens_of_message(const Workload& workload, const Cluster& cluster,
                               const StrategyRequest& request, double token_us) {
  const double messages = static_cast<double>(workload.masks.size()) * (request.backward ? 2 : 1);
  constexpr double kMost = 1e15;  // fits 64 bits
  return static_cast<std::int64_t>(
      std::min(messages * (cluster.launch_us + cluster.intra_latency_us) / token_us, kMost));
}

// Tokens of the device that owns the most in the workload's home layout.
std::int64_t most_tokens_of_home(const Workload& workload, const Cluster& cluster) {
  IdVector<Rank, std::int64_t> owned(IdRange<Rank>{cluster.num_devices()}, 0);
  for (const HomeRange& home : workload.home) {
    // Planning refuses other owners, with a message.
    if (home.owner.value < cluster.num_devices()) owned[home.owner] += home.tokens.size();
  }
  return *std::ranges::max_element(owned);
}

}  // namespace

TokenRule token_rule(const Workload& workload, const Cluster& cluster,
                     const StrategyRequest& request, const AutoOptions& options) {
  const std::int64_t devices = cluster.num_devices();
  const std::int64_t tokens = workload.num_tokens();
  const std::int64_t mean = (tokens + devices - 1) / devices;
  const bool is_layer = options.objective == Objective::kLayer;
  const bool is_even =
      options.tokens == TokenCap::kAuto ? !is_layer : options.tokens == TokenCap::kEven;
  TokenRule rule{.mean = mean};
  if (is_layer) rule.us = linear_layers_us(workload, cluster, request);
  if (is_even) {
    rule.cap = mean + std::max(tuning::kEvenTokensAboveMean,
                               std::min(tokens, request.block_size.value_or(0)));
    rule.cap += request.tokens_multiple - 1;  // the rest of a multiple, which alignment may add
  }
  if (request.limits.tokens) {
    const std::int64_t limit = std::max(mean, *request.limits.tokens);
    rule.cap = rule.cap == 0 ? limit : std::min(rule.cap, limit);
  }
  rule.placing_cap = rule.cap;
  if (!workload.home.empty()) {
    rule.of_home = most_tokens_of_home(workload, cluster);
  } else if (rule.us > 0) {
    const auto slack = static_cast<std::int64_t>(tuning::kTokenSlack * static_cast<double>(mean));
    const std::int64_t most = rule.cap == 0 ? tokens : rule.cap;
    rule.placing_cap = std::min(most, mean + slack);
    rule.level_cap = std::min(most, mean + tokens_of_message(workload, cluster, request, rule.us));
  }
  return rule;
}

std::int64_t num_threads() {
  return static_cast<std::int64_t>(
      tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism));
}

std::int64_t step_limit(const AutoOptions& options, std::int64_t devices) {
  const std::int64_t steps = std::max(options.steps, options.steps_per_device * devices);
  if (options.budget_ms == 0) return steps == 0 ? tuning::kUnlimitedSteps : steps;
  constexpr std::int64_t kMostMs = 1'000'000'000;  // the product stays within 64 bits
  const std::int64_t by_time = 1000 * std::min(options.budget_ms, kMostMs) * num_threads();
  return steps == 0 ? by_time : std::min(steps, by_time);
}

std::optional<std::int64_t> memory_limit(const Cluster& cluster, const StrategyRequest& request) {
  if (cluster.memory_bytes == 0) return request.limits.memory_bytes;
  return std::min(cluster.memory_bytes, request.limits.memory_bytes.value_or(cluster.memory_bytes));
}

PlanTimes times_of(const Plan& plan, const Simulation& simulation,
                   std::optional<std::int64_t> memory_limit_bytes) {
  PlanTimes times{.forward_us = simulation.forward ? simulation.forward->time_us : 0,
                  .backward_us = simulation.backward ? simulation.backward->time_us : 0};
  if (!memory_limit_bytes) return times;
  const PlanStats stats = statistics(plan);
  const auto limit = [&](const std::optional<DirectionStats>& direction, double& time_us) {
    if (!direction) return;
    times.memory_bytes = std::max(times.memory_bytes, direction->peak_memory_bytes);
    if (direction->peak_memory_bytes > *memory_limit_bytes) time_us = kNever;
  };
  limit(stats.forward, times.forward_us);
  limit(stats.backward, times.backward_us);
  return times;
}

SearchResult search(const Workload& workload, const Cluster& cluster,
                    const StrategyRequest& request, const AutoOptions& options) {
  SearchState state(workload, cluster, request, options);
  const bool retain = decide_retain(workload, cluster, request, options.retain);
  SearchParts parts(state, retain);
  SearchReport report;
  report.prepare_s = 1e-6 * state.elapsed_us();
  report.phases = run_phases(parts);
  check_found(state);
  const double finishing_us = state.elapsed_us();
  SearchResult result{.arrangement = state.best.arrange(),
                      .chosen = std::move(state.best.chosen),
                      .predicted_us = state.best.time_us,
                      .layer_us = {},
                      .binding = {},
                      .candidates = state.tried,
                      .report = std::move(report)};
  if (state.tokens.us > 0) result.layer_us = state.objective_us();
  state.reserve_us = 0;
  if (state.has_time_for(tuning::kSimulationsOfBinding *
                         steps_of_simulating(cluster.num_devices(), state.best.tiles))) {
    state.progress.all_done("finding what binds");
    result.binding =
        binding_of(build_plan(workload, cluster, result.arrangement, {.digest = false}), cluster);
  }
  result.report.winner = result.chosen;
  result.report.winner_options = result.arrangement.options;
  if (state.best_other.time_us < kNever) {
    result.report.best_other = state.best_other.name;
    result.report.best_other_us = state.best_other.time_us;
  }
  result.report.found_in = last_improved(result.report.phases);
  result.report.finish_s = 1e-6 * (state.elapsed_us() - finishing_us);
  return result;
}

}  // namespace contextile
