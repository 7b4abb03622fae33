#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/check.h"
#include "contextile/plan_build.h"
#include "contextile/plan_stats.h"
#include "contextile/planner.h"
#include "contextile/registry.h"
#include "contextile/verify.h"
#include "planner/timed_block_size.h"

namespace contextile {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

StrategyRequest request_of(const StrategyChoice& choice, const PlanOptions& options) {
  return {.options = choice.options,
          .block_size = options.block_size,
          .wire = options.wire,
          .backward = options.backward,
          .seed = options.seed,
          .progress = options.progress};
}

std::optional<std::string> unsupported_reason(const Workload& workload, const Cluster& cluster,
                                              const StrategyChoice& choice,
                                              const PlanOptions& options) {
  return find_strategy(choice.name).unsupported(workload, cluster, request_of(choice, options));
}

PlannedBatch plan_batch(const Workload& workload, const Cluster& cluster,
                        const StrategyChoice& choice, const PlanOptions& options) {
  const Strategy& strategy = find_strategy(choice.name);
  const auto begin = [&](std::string_view what, std::int64_t step) {
    constexpr std::int64_t kSteps = 3;
    if (options.progress) options.progress(what, step, kSteps);
  };
  PlannedBatch planned;
  begin("arranging", 0);
  const Clock::time_point started = Clock::now();
  const Arrangement arrangement =
      arrange_timed(strategy, workload, cluster, request_of(choice, options));
  planned.arrange_s = seconds_since(started);
  begin("building the plan", 1);
  const Clock::time_point arranged = Clock::now();
  planned.plan = std::make_shared<const Plan>(build_plan(
      workload, cluster, arrangement,
      {.token_limit = options.token_limit, .memory_limit_bytes = options.memory_limit_bytes}));
  planned.build_s = seconds_since(arranged);
  begin("verifying", 2);
  const Clock::time_point built = Clock::now();
  planned.verified = verify(*planned.plan);
  planned.verify_s = seconds_since(built);
  planned.statistics = statistics(*planned.plan);
  return planned;
}

PlannedBatch plan_and_check(const Workload& workload, const Cluster& cluster,
                            const StrategyChoice& choice, const PlanOptions& options) {
  PlannedBatch planned = plan_batch(workload, cluster, choice, options);
  if (!planned.verified.ok()) {
    throw CheckFailed(fmt::format("{}: {} violations: {}", choice_text(choice),
                                  planned.verified.num_violations,
                                  planned.verified.violations.front()));
  }
  return planned;
}

}  // namespace contextile
