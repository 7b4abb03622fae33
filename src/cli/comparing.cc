#include "cli/comparing.h"

#include <fmt/format.h>

#include <cstddef>

#include "base/check.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/oracle.h"
#include "contextile/registry.h"

namespace contextile {
namespace {

// Above this the oracle takes minutes: such batches are not executed for comparison.
constexpr double kMaxRunFlops = 1e12;

Passes passes_of(const PlanInput& input) {
  return input.options.backward ? Passes::kForwardBackward : Passes::kForward;
}

void check_executable(const PlanInput& input) {
  for (const Workload& workload : input.batches) {
    const double flops = oracle_flops(workload, passes_of(input));
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
  // It belongs to the batch at hand. With one batch the oracle runs once for all strategies; the
  // references of many batches would not fit into memory together.
  std::optional<RunReference> reference;
  std::size_t reference_batch = 0;
  if (execution) {
    RunOptions options;
    options.seed = execution->seed;
    options.repeats = execution->repeats;
    options.kernel = execution->kernel;
    result.runs.resize(choices.size());
    hooks.planned = [&, options](std::size_t strategy, std::size_t batch,
                                 const PlannedBatch& planned) {
      check_run_memory(*planned.plan, planned.statistics);
      if (!reference || reference_batch != batch) {
        reference.reset();
        reference = make_run_reference(input.batches[batch], options, passes_of(input));
        reference_batch = batch;
      }
      StrategyRuns& runs = result.runs[strategy];
      if (execution->machine)
        runs.predicted.push_back(simulate(*planned.plan, *execution->machine));
      runs.reports.push_back(run_plan(planned.plan, options, *reference));
    };
  }
  PlanInput planned = input;
  planned.options.progress = progress.within_step();
  result.compared = compare_strategies(planned, choices, hooks);
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
