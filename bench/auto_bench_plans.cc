#include "auto_bench_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "contextile/advanced/model.h"
#include "contextile/bounds.h"
#include "contextile/extend/plan_build.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"

namespace contextile::bench {
namespace {

// With more devices, simulate() updates shares of bandwidth only now and then, so a plan may come
// out below its bound.
constexpr std::int32_t kMostExactDevices = 64;

// Tokens of a device on average.
double mean_tokens(const PlanStats& stats, const Cluster& cluster) {
  return static_cast<double>(stats.tokens) / static_cast<double>(cluster.num_devices());
}

// The mean and a block of 1024 tokens (docs/auto.md).
bool is_even(const Plan& plan) {
  constexpr double kBlock = 1024;
  const PlanStats stats = statistics(plan);
  const double mean = static_cast<double>(stats.tokens) / (plan.nodes * plan.devices_per_node);
  return stats.token_overload * mean <= kBlock + 1;
}

void add_bound(const Plan& plan, const Workload& workload, const Cluster& cluster,
               PredictedPlan& predicted) {
  const BoundOptions beside = bound_options_beside(plan, workload, cluster);
  double longest_us = 0;
  for (const Direction direction : kDirections) {
    const TimeBound bound = lower_bound(workload, cluster, direction, beside);
    predicted.bound_us += bound.time_us;
    predicted.separate_bound_us += bound.separate_us;
    if (bound.time_us > longest_us) predicted.binding = bound.binding;
    longest_us = std::max(longest_us, bound.time_us);
  }
  if (predicted.bound_us > predicted.time_us) {
    fmt::print(stderr, "{}: {} us is below the bound of {} us\n", predicted.text, predicted.time_us,
               predicted.bound_us);
    if (cluster.num_devices() <= kMostExactDevices) std::exit(1);
  }
}

void predict(const Strategy& strategy, const Workload& workload, const Cluster& cluster,
             const StrategyRequest& request, const AutoBenchOptions& options,
             FastestPlans& fastest) {
  PredictedPlan predicted;
  predicted.text = choice_text({std::string(strategy.name()), request.options});
  if (request.block_size) predicted.text += fmt::format(" block size {}", *request.block_size);
  StrategyRequest searching = request;
  searching.searched = [&](const SearchReport& report) {
    predicted.found =
        choice_text({report.winner, report.winner_options}) + " in " + report.found_in;
  };
  const auto start = std::chrono::steady_clock::now();
  const Plan plan = build_plan(workload, cluster, strategy.arrange(workload, cluster, searching));
  predicted.planning_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const VerifyReport report = verify(plan);
  if (!report.ok()) {
    fmt::print(stderr, "{}: {}\n", predicted.text, report.violations.front());
    std::exit(1);
  }
  const PlanStats stats = statistics(plan);
  predicted.attention_us = simulate(plan, cluster).time_us();
  predicted.overload = stats.token_overload;
  predicted.time_us = predicted.attention_us + linear_us(stats, cluster, options);
  const double least_linear_us = options.linear_us(cluster) * mean_tokens(stats, cluster);
  predicted.bound_us = predicted.separate_bound_us = least_linear_us;
  add_bound(plan, workload, cluster, predicted);
  if (predicted.time_us < fastest.any.time_us) fastest.any = predicted;
  if (predicted.time_us < fastest.even.time_us && is_even(plan)) fastest.even = predicted;
}

}  // namespace

double AutoBenchOptions::linear_us(const Cluster& cluster) const {
  constexpr double kPasses = 3;
  return objective == "layer" ? kPasses * guessed_linear_us_per_token(shape, cluster) : 0;
}

double linear_us(const PlanStats& stats, const Cluster& cluster, const AutoBenchOptions& options) {
  return options.linear_us(cluster) * (1 + stats.token_overload) * mean_tokens(stats, cluster);
}

FastestPlans fastest_of(const Strategy& strategy, const Workload& workload, const Cluster& cluster,
                        const AutoBenchOptions& options) {
  FastestPlans fastest;
  for (const auto& variant : strategy.variants(workload, cluster, {})) {
    StrategyRequest request;
    request.max_roundings = kAnyRoundings;  // as the originals
    request.options = variant;
    if (strategy.name() == "auto") {
      request.options["objective"] = options.objective;
      request.options["steps"] = options.limit;
      request.options["steps_per_device"] = fmt::format("{}", std::stoll(options.limit) / 32);
    }
    if (strategy.unsupported(workload, cluster, request)) continue;
    const std::vector<std::int64_t> sizes = strategy.block_sizes(request);
    if (sizes.empty()) predict(strategy, workload, cluster, request, options, fastest);
    for (const std::int64_t size : sizes) {
      request.block_size = size;
      predict(strategy, workload, cluster, request, options, fastest);
    }
  }
  return fastest;
}

}  // namespace contextile::bench
