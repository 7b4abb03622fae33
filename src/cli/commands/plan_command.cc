// contextile plan: lengths, mask, cluster and strategy to verified plan files.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "base/replaced_file.h"
#include "base/standard_stream.h"
#include "cli/commands/contextile_program.h"
#include "cli/commands/plan_prediction.h"
#include "cli/commands/plan_schedules.h"
#include "cli/help.h"
#include "cli/options/input.h"
#include "cli/options/outputs.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/planner.h"
#include "report/json.h"
#include "report/plan_tables.h"
#include "report/search_tables.h"
#include "report/table.h"

namespace contextile {
namespace {

struct PlanCommandOptions {
  InputOptions input;
  std::vector<StrategyChoice> strategy;
  std::string output_path;
  bool json = false;
  bool csv = false;
  bool explain = false;
  bool no_prediction = false;
  ScheduleOptions schedule;
};

std::vector<std::string> output_names(const PlanCommandOptions& options, std::size_t num_batches) {
  if (num_batches == 1) return {options.output_path};
  std::vector<std::string> names;
  for (std::size_t b = 0; b < num_batches; ++b) {
    names.push_back(fmt::format("{}.{}", options.output_path, b));
  }
  return names;
}

std::vector<std::string> input_files(const InputOptions& input) {
  return {input.lengths_path, input.cluster, input.workload.mask_path, input.workload.layout};
}

void check_output_names(const PlanCommandOptions& options, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    check_no_input("--output", name, input_files(options.input));
  }
}

// The search is shown as a table or inside the JSON document.
void check_explain(const PlanCommandOptions& options, const Strategy& strategy) {
  if (!options.explain) return;
  if (strategy.search_phases().empty()) {
    fail_argument("--explain: expected a strategy that searches in phases, such as auto, found {}",
                  quote(strategy.name()));
  }
  if (options.csv) fail_argument("--explain: expected a table or --json, found --csv");
  if (options.output_path == kStandardStream) {
    fail_argument("--output: expected a file with --explain, found {}", quote(options.output_path));
  }
}

// Only tables and JSON of plans have a prediction to leave out.
void check_no_prediction(const PlanCommandOptions& options) {
  if (!options.no_prediction) return;
  for (const auto& [name, is_given] :
       {std::pair("--csv", options.csv), std::pair("--schedule", options.schedule.schedule),
        std::pair("--output -", options.output_path == kStandardStream)}) {
    if (is_given) {
      fail_argument("--no-prediction: expected a table or --json of plans, found {}", name);
    }
  }
}

// Nothing for output without a prediction.
std::optional<PlanPrediction> prediction_of(const PlanCommandOptions& options,
                                            const PlanInput& input, const Workload& workload,
                                            const StrategyChoice& choice,
                                            const PlannedBatch& planned) {
  const bool is_shown = options.json || (!options.csv && options.output_path != kStandardStream);
  if (options.no_prediction || !is_shown || !planned.verified.ok()) return std::nullopt;
  return predict_planned(workload, input.cluster, choice, planned, input.options);
}

Json planned_json(const PlannedBatch& planned, const std::optional<PlanPrediction>& prediction,
                  const std::string& path, bool explain) {
  Json document = {{"file", path}, {"written", planned.verified.ok()}};
  document.update(plan_json(*planned.plan));
  document["arrange_s"] = planned.arrange_s;
  document["build_s"] = planned.build_s;
  document["verify_s"] = planned.verify_s;
  document["verify"] = verify_json(planned.verified);
  document["statistics"] = statistics_json(planned.statistics);
  if (prediction) document["prediction"] = prediction_json(*prediction);
  if (explain && planned.search) document["search"] = search_json(*planned.search);
  return document;
}

// Adds one row per direction.
void add_planned_rows(const std::string& strategy, const PlannedBatch& planned,
                      const std::string& path, Json& rows) {
  const Json statistics = statistics_json(planned.statistics);
  for (const char* direction : {"forward", "backward"}) {
    if (!statistics.contains(direction)) continue;
    Json row = {{"file", path},
                {"strategy", strategy},
                {"direction", direction},
                {"ok", planned.verified.ok()},
                {"tokens", planned.plan->num_tokens()},
                {"arrange_s", planned.arrange_s},
                {"build_s", planned.build_s},
                {"verify_s", planned.verify_s}};
    row.update(statistics[direction]);
    rows.push_back(std::move(row));
  }
}

std::string planned_text(const PlannedBatch& planned,
                         const std::optional<PlanPrediction>& prediction, const std::string& path) {
  return fmt::format("plan      {}{}\n", printable(path),
                     planned.verified.ok() ? "" : " (broken, not written)") +
         describe_plan(*planned.plan) + (prediction ? prediction_text(*prediction) : "") + "\n" +
         statistics_text(planned.statistics) +
         fmt::format("planned in {} ms (arrange {}, build {}), verified in {} ms\n",
                     format_number(planned.planning_s() * 1e3),
                     format_number(planned.arrange_s * 1e3), format_number(planned.build_s * 1e3),
                     format_number(planned.verify_s * 1e3)) +
         verify_text(planned.verified, stdout_shows_colour());
}

// Plans the batches. A plan that does not verify is not written.
int run(const PlanCommandOptions& options) {
  check_formats(options.json, options.csv);
  check_results_elsewhere(options.output_path, options.json || options.csv);
  if (options.output_path == kStandardStream && stdout_is_terminal()) {
    fail_argument("--output: expected a file or a pipe, found a terminal");
  }
  const StrategyChoice& choice = single_choice("--strategy", options.strategy);
  // Before a long read, as misspelt names.
  check_explain(options, find_strategy(choice.name));
  check_no_prediction(options);
  check_schedule(options.schedule, choice, options.output_path, options.explain);
  const PlanInput input = load_input(options.input);
  for (const Workload& workload : input.batches) {
    if (const auto reason = unsupported_reason(workload, input.cluster, choice, input.options)) {
      fail_argument("strategy '{}' cannot plan this: {}", choice.name, *reason);
    }
  }
  const std::vector<std::string> names = output_names(options, input.batches.size());
  check_output_names(options, names);
  if (options.schedule.schedule) {
    return plan_schedules(
        options.schedule, input, choice, names,
        {.json = options.json, .csv = options.csv, .inputs = input_files(options.input)});
  }
  ProgressBar progress(static_cast<std::int64_t>(input.batches.size()));
  PlanOptions settings = input.options;
  settings.progress = progress.within_step();
  Json plans = Json::array();
  bool ok = true;
  for (std::size_t b = 0; b < input.batches.size(); ++b) {
    const std::string& path = names[b];
    ReplacedFile file(path);  // before the work, so that a bad path costs no time
    progress.step(quote(path));
    const PlannedBatch planned = plan_batch(input.batches[b], input.cluster, choice, settings);
    ok = ok && planned.verified.ok();
    if (planned.verified.ok()) {
      file.write(serialize(*planned.plan));
      file.commit();
    }
    const std::optional<PlanPrediction> prediction =
        prediction_of(options, input, input.batches[b], choice, planned);
    if (options.json) {
      plans.push_back(planned_json(planned, prediction, path, options.explain));
    } else if (options.csv) {
      add_planned_rows(choice_text(choice), planned, path, plans);
    } else if (path != kStandardStream) {
      print((b == 0 ? "" : "\n") + planned_text(planned, prediction, path));
      if (options.explain && planned.search) print(search_text(*planned.search));
    }
  }
  if (options.json) {
    print_json(
        {{"command", "plan"}, {"seed", options.input.plan.seed}, {"plans", std::move(plans)}});
  } else if (options.csv) {
    print(table_of(plans).csv());
  }
  return ok ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action add_plan_command(CLI::App& app) {
  auto options = std::make_shared<PlanCommandOptions>();
  add_required_output(app, "-o,--output",
                      {"FILE", "plan file, - for stdout; batches: FILE.0, FILE.1", ""},
                      [options](const std::string& path) { options->output_path = path; });
  add_strategy_option(app, options->strategy, kQuickAuto, "how tokens and tiles go to devices");
  add_input_options(app, options->input);
  add_json_option(app, options->json);
  add_csv_option(app, options->csv, "a row for each batch and direction");
  add_switch(app, "--explain", options->explain,
             "also how auto searched: its phases, what each tried and found, and the winner");
  add_switch(app, "--no-prediction", options->no_prediction,
             "leave out the predicted time and that of another method; saves a simulation, and "
             "zigzag's plan if the strategy is not auto");
  add_schedule_options(app, options->schedule);
  add_examples(
      app, {"contextile plan -o batch.plan --dataset prolong --tokens 128K --cluster dgx-h200:4x8",
            "contextile plan -o other.plan --lengths lengths.txt --mask lambda:64,4096 --strategy "
            "zigzag",
            "contextile plan -o batch.json --schedule --strategy megatron_dynamic --lengths "
            "lengths.txt"});
  show_first(app, {"--output", "--strategy", "--lengths", "--dataset", "--tokens", "--mask",
                   "--cluster", "--json"});
  return [options] { return run(*options); };
}

}  // namespace contextile
