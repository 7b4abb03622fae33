// contextile compare: strategies on the same batches, side by side.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
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
#include "report/comparison_summary.h"
#include "report/comparison_tables.h"
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
  std::string now;  // empty: zigzag if it is compared, else the first
  bool details = false;
  bool json = false;
  bool csv = false;
};

// The strategy that the others are compared with: the given one, or zigzag, or the first that plans
// the first batch.
std::size_t index_of_now(const CompareOptions& options, const PlanInput& input) {
  const std::vector<StrategyChoice>& choices = options.strategies;
  const auto index = [&](auto found) { return static_cast<std::size_t>(found - choices.begin()); };
  if (!options.now.empty()) {
    auto found = std::ranges::find(choices, options.now, choice_text);
    if (found == choices.end())
      found = std::ranges::find(choices, options.now, &StrategyChoice::name);
    if (found == choices.end()) {
      std::vector<std::string> names;
      std::ranges::transform(choices, std::back_inserter(names), choice_text);
      fail_argument("--now: expected a compared strategy ({}), found {}", fmt::join(names, ", "),
                    quote(options.now));
    }
    return index(found);
  }
  const auto applies = [&](const StrategyChoice& choice) {
    return !unsupported_reason(input.batches.front(), input.cluster, choice, input.options);
  };
  const auto zigzag = std::ranges::find(choices, "zigzag", &StrategyChoice::name);
  if (zigzag != choices.end() && applies(*zigzag)) return index(zigzag);
  const auto first = std::ranges::find_if(choices, applies);
  return first == choices.end() ? 0 : index(first);
}

// Only tables have details, and only tables and JSON have a multiple.
void check_text_options(const CompareOptions& options) {
  if (options.csv && !options.now.empty()) {
    fail_argument("--now: expected a table or --json, found --csv");
  }
  if (options.details && (options.csv || options.json)) {
    fail_argument("--details: expected a table, found {}", options.csv ? "--csv" : "--json");
  }
}

std::string compared_text(const CompareOptions& options, const PlanInput& input,
                          const ComparisonResult& result, std::size_t now) {
  const bool colour = stdout_shows_colour();
  std::string text =
      comparison_heading(input) +
      wrap(fmt::format("predicted on {}; layer: attention, and linear layers on the device with "
                       "the most tokens; waits: for transfers, share of attention, mean over "
                       "devices; now: {}",
                       printable(input.cluster.name), choice_text(options.strategies[now])),
           kTextColumns) +
      "\n\n" + sorted_table(result.compared, now).text(colour) +
      schedules_text(input, result.compared) + '\n' +
      now_sentence(result.compared, now, result.now_waits);
  if (options.details) text += '\n' + detail_text(input, result.compared, colour);
  return text + execution_text(result.compared, result.runs, options.input.plan.seed, colour);
}

Json compared_json(const ComparisonResult& result, std::size_t now) {
  Json rows = comparisons_json(result.compared, result.runs);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Cell speed = speed_of_now(result.compared[i], result.compared[now]);
    if (const double* times = std::get_if<double>(&speed))
      rows[i]["predicted_speed_of_now"] = *times;
  }
  return rows;
}

int run(const CompareOptions& options) {
  check_formats(options.json, options.csv);
  check_text_options(options);
  if (options.one_plan) check_any_schedules("--one-plan", options.strategies);
  if (options.csv && options.execute) {
    fail_argument("--csv: expected one table, found two with --run; use --json");
  }
  PlanInput input = load_input(options.input);
  input.schedules = !options.one_plan;
  const std::size_t now = index_of_now(options, input);
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
      compare_at_terminal(input, options.strategies, execution, options.sensitivity,
                          options.csv || options.json ? std::nullopt : std::optional(now));
  if (options.json) {
    Json document = {{"command", "compare"},
                     {"seed", options.input.plan.seed},
                     {"cluster", cluster_json(input.cluster)},
                     {"batches", input.batches.size()},
                     {"now", choice_text(options.strategies[now])},
                     {"strategies", compared_json(result, now)}};
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
    print(compared_text(options, input, result, now));
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
  add_value(
      app, "--now",
      {"STRATEGY", "the strategy in use, which others are compared with", "zigzag, else the first"},
      [options = options.get()](const std::string& name) { options->now = name; });
  add_switch(app, "--details", options->details,
             "also the tables of bytes, of forward and backward times, and of layers");
  add_switch(app, "--one-plan", options->one_plan,
             "count all micro-batches of bytescale, megatron_dynamic and megatron_packed as one "
             "plan, as if a rank held them at the same time");
  add_input_options(app, options->input);
  add_json_option(app, options->json);
  add_csv_option(app, options->csv, "the table, with --sensitivity that of changed constants,");
  add_examples(
      app, {"contextile compare --dataset prolong --tokens 64K --strategy zigzag,hybrid,magi,dcp",
            "contextile compare --lengths lengths.txt --cluster local:1x4 --run",
            "contextile compare --lengths lengths.txt --sensitivity"});
  show_first(app, {"--strategy", "--now", "--run", "--lengths", "--dataset", "--tokens", "--mask",
                   "--cluster", "--json"});
  return [options] { return run(*options); };
}

}  // namespace contextile
