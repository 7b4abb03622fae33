#include "cli/comparing.h"

#include <fmt/format.h>

#include <cstddef>

#include "base/check.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/advanced/oracle.h"
#include "contextile/planner.h"

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

Sensitivity replan_at_terminal(const PlanInput& input, std::span<const StrategyChoice> choices) {
  const std::size_t num_clusters = changed_constants(input.cluster).size();
  ProgressBar progress(static_cast<std::int64_t>(num_clusters * choices.size()));
  PlanInput planned = input;
  planned.options.progress = progress.within_step();
  return replan_sensitivity(planned, choices, [&](const ChangedConstant& changed, std::size_t i) {
    progress.step(fmt::format("{}, {} {}", choice_text(choices[i]), changed.constant, changed.is));
  });
}

// Executes the plans of a comparison as they come.
class PlanRuns {
 public:
  PlanRuns(const PlanInput& input, const Execution& execution, std::vector<StrategyRuns>& runs)
      : input_(input), execution_(execution), runs_(runs) {
    options_.seed = execution.seed;
    options_.repeats = execution.repeats;
    options_.kernel = execution.kernel;
  }

  void run(std::size_t strategy, std::size_t batch, const PlannedBatch& planned) {
    check_run_memory(*planned.plan, planned.statistics);
    if (!reference_ || reference_batch_ != batch) {
      reference_.reset();
      reference_ = make_run_reference(input_.batches[batch], options_, passes_of(input_));
      reference_batch_ = batch;
    }
    StrategyRuns& runs = runs_[strategy];
    if (execution_.machine) runs.predicted.push_back(simulate(*planned.plan, *execution_.machine));
    runs.reports.push_back(run_plan(planned.plan, options_, *reference_));
  }

 private:
  const PlanInput& input_;
  const Execution& execution_;
  std::vector<StrategyRuns>& runs_;
  RunOptions options_;
  // It belongs to the batch at hand. With one batch the oracle runs once for all strategies; the
  // references of many batches would not fit into memory together.
  std::optional<RunReference> reference_;
  std::size_t reference_batch_ = 0;
};

}  // namespace

ComparisonResult compare_at_terminal(const PlanInput& input,
                                     std::span<const StrategyChoice> choices,
                                     const std::optional<Execution>& execution,
                                     const std::optional<SensitivityPlans>& sensitivity,
                                     std::optional<std::size_t> now) {
  if (execution) check_executable(input);
  ComparisonResult result;
  ProgressBar progress(static_cast<std::int64_t>(choices.size() * input.batches.size()));
  ComparisonHooks hooks;
  hooks.started = [&](std::size_t strategy, std::size_t) {
    progress.step(choice_text(choices[strategy]));
  };
  std::optional<PlanRuns> plan_runs;
  if (execution) {
    result.runs.resize(choices.size());
    plan_runs.emplace(input, *execution, result.runs);
  }
  std::optional<SensitivityOfPlans> kept;
  if (sensitivity == SensitivityPlans::kKept) {
    kept.emplace(input.cluster, choices, input.batches.size());
  }
  WaitingTimes now_waits(input.cluster);
  hooks.planned = [&](std::size_t strategy, std::size_t batch, const PlannedBatch& planned) {
    if (kept) kept->add(strategy, batch, *planned.plan);
    if (strategy == now) {
      now_waits.add(simulate(*planned.plan, input.cluster, {.timeline = true}));
    }
    if (plan_runs) plan_runs->run(strategy, batch, planned);
  };
  PlanInput planned = input;
  planned.options.progress = progress.within_step();
  result.compared = compare_strategies(planned, choices, hooks);
  result.now_waits = now_waits.result();
  if (kept) result.sensitivity = kept->result();
  if (sensitivity == SensitivityPlans::kReplan) {
    result.sensitivity = replan_at_terminal(input, choices);
  }
  return result;
}

bool report_failures(const ComparisonResult& result) {
  const std::vector<std::string> lines = failures(result.compared, result.runs);
  for (const std::string& failure : lines) {
    print_check_failed(failure);
  }
  return lines.empty();
}

}  // namespace contextile
