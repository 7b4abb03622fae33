// contextile compare: strategies on the same batches, side by side.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cli/commands/contextile_program.h"
#include "cli/commands/plan_schedules.h"
#include "cli/comparing.h"
#include "cli/help.h"
#include "cli/options/input.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/this_machine.h"
#include "contextile/extend/kernel.h"
#include "contextile/planner.h"
#include "report/fidelity.h"
#include "report/json.h"
#include "report/plan_tables.h"
#include "report/sensitivity_tables.h"
#include "report/table.h"

namespace contextile {
namespace {

struct CompareOptions {
  InputOptions input;
  std::vector<StrategyChoice> strategies;
  bool execute = false;
  std::int32_t repeats = 1;
  std::string kernel;  // empty: the preferred one for the dtype
  std::optional<SensitivityPlans> sensitivity;
  bool one_plan = false;
  bool json = false;
  bool csv = false;
};

int run(const CompareOptions& options) {
  check_formats(options.json, options.csv);
  if (options.one_plan) check_any_schedules("--one-plan", options.strategies);
  if (options.csv && options.execute) {
    fail_argument("--csv: expected one table, found two with --run; use --json");
  }
  PlanInput input = load_input(options.input);
  input.schedules = !options.one_plan;
  std::optional<Execution> execution;
  static_cast<void>(find_kernel(options.kernel));
  if (options.execute) {
    execution = {
        .seed = options.input.plan.seed,
        .repeats = options.repeats,
        .kernel = options.kernel,
        .machine = machine_of_runs(input.cluster, input.batches.front().shape, options.kernel)};
  }
  const ComparisonResult result =
      compare_at_terminal(input, options.strategies, execution, options.sensitivity);
  if (options.json) {
    Json document = {{"command", "compare"},
                     {"seed", options.input.plan.seed},
                     {"cluster", cluster_json(input.cluster)},
                     {"batches", input.batches.size()},
                     {"strategies", comparisons_json(result.compared, result.runs)}};
    const Agreement agreed = agreement(result.runs);
    if (agreed.rank_correlation) {
      document["rank_correlation"] = *agreed.rank_correlation;
      document["pairs_apart"] = agreed.pairs.differing;
      document["pairs_in_predicted_order"] = agreed.pairs.alike;
    }
    if (result.sensitivity) document["sensitivity"] = sensitivity_json(*result.sensitivity);
    print_json(document);
  } else if (options.csv) {
    print((result.sensitivity ? sensitivity_table(*result.sensitivity)
                              : planning_table(result.compared))
              .csv());
  } else {
    print(comparison_text(input, result.compared, result.runs, options.input.plan.seed,
                          stdout_shows_colour()));
    if (result.sensitivity) {
      print('\n' + sensitivity_text(*result.sensitivity, stdout_shows_colour()));
    }
  }
  return report_failures(result) ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action add_compare_command(CLI::App& app) {
  auto options = std::make_shared<CompareOptions>();
  add_strategy_option(app, options->strategies, "all", "which strategies, comma-separated");
  add_switch(app, "--run", options->execute,
             "also execute every plan on in-process ranks and check it against the oracle");
  add_size<std::int32_t>(app, "--repeats", options->repeats, 1,
                         {"N", "with --run: timed repetitions, the fastest counts", ""});
  add_kernel_option(app, options->kernel, "with --run: attention kernel");
  add_value_or(app, "--sensitivity", "kept",
               {"kept|replan",
                "which strategy is fastest when each constant of the cluster is halved or doubled: "
                "by the same plans (kept, also without a value), or with plans made for each",
                ""},
               [options = options.get()](const std::string& text) {
                 options->sensitivity = parse_sensitivity_plans(text);
               });
  add_switch(app, "--one-plan", options->one_plan,
             "count all micro-batches of bytescale, megatron_dynamic and megatron_packed as one "
             "plan, as if a rank held them at the same time");
  add_input_options(app, options->input);
  add_json_option(app, options->json);
  add_csv_option(app, options->csv, "the table, with --sensitivity that of changed constants,");
  add_examples(
      app, {"contextile compare --dataset prolong --tokens 64K --strategy zigzag,hybrid,magi,dcp",
            "contextile compare --lengths lengths.txt --cluster local:1x4 --run",
            "contextile compare --lengths lengths.txt --strategy zigzag,magi,dcp --sensitivity"});
  show_first(app, {"--strategy", "--run", "--lengths", "--dataset", "--tokens", "--mask",
                   "--cluster", "--json"});
  return [options] { return run(*options); };
}

}  // namespace contextile
