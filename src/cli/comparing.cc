#include "cli/comparing.h"

#include <fmt/format.h>

#include "base/check.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/oracle.h"
#include "contextile/registry.h"

namespace contextile {
namespace {

// Above this the oracle takes minutes: such batches are not executed for comparison.
constexpr double kMaxRunFlops = 1e12;

void check_executable(const PlanInput& input) {
  for (const Workload& workload : input.batches) {
    const double flops = oracle_flops(workload, input.options.backward);
    if (flops > kMaxRunFlops) {
      fail_argument(
          "--run: expected batches of at most {:.0e} FLOPs for the oracle, found one of {:.1e} ({} "
          "tokens); give a smaller --tokens, --scale or --heads",
          kMaxRunFlops, flops, workload.num_tokens());
    }
  }
}

}  // namespace

ComparisonResult compare_at_terminal(const PlanInput& input,
                                     std::span<const StrategyChoice> choices,
                                     const std::optional<Execution>& execution) {
  if (execution) check_executable(input);
  ComparisonResult result;
  ProgressBar progress(static_cast<std::int64_t>(choices.size() * input.batches.size()));
  ComparisonHooks hooks;
  hooks.started = [&](std::size_t strategy, std::size_t) {
    progress.step(choice_text(choices[strategy]));
  };
  if (execution) {
    result.runs.resize(choices.size());
    hooks.planned = [&](std::size_t strategy, std::size_t, const PlannedBatch& planned) {
      check_run_memory(*planned.plan, planned.statistics);
      RunOptions options;
      options.seed = execution->seed;
      options.repeats = execution->repeats;
      options.kernel = execution->kernel;
      result.runs[strategy].push_back(run_plan(planned.plan, options));
    };
  }
  result.compared = compare_strategies(input, choices, hooks);
  return result;
}

bool report_failures(const ComparisonResult& result) {
  const std::vector<std::string> lines = failures(result.compared, result.runs);
  for (const std::string& failure : lines) {
    fmt::print(stderr, "contextile: check failed: {}\n", failure);
  }
  return lines.empty();
}

}  // namespace contextile
