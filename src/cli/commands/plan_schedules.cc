#include "cli/commands/plan_schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "base/replaced_file.h"
#include "base/standard_stream.h"
#include "cli/commands/command.h"
#include "cli/help.h"
#include "cli/options/outputs.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan_file.h"
#include "contextile/schedule.h"
#include "report/json.h"
#include "report/plan_tables.h"
#include "report/schedule_tables.h"
#include "report/table.h"

namespace contextile {
namespace {

// Writes the plans and, if all of them verify, the schedule.
void write_schedule(const PlannedSchedule& schedule, const std::string& path,
                    const std::vector<std::string>& plan_files) {
  ReplacedFile file(path);
  for (std::size_t i = 0; i < schedule.plans.size(); ++i) {
    ReplacedFile plan(plan_files[i]);
    plan.write(serialize(*schedule.plans[i].planned.plan));
    plan.commit();
  }
  file.write(schedule_json(schedule, plan_files).dump(1) + '\n');
  file.commit();
}

void report_broken(const PlannedSchedule& schedule) {
  for (std::size_t i = 0; i < schedule.plans.size(); ++i) {
    for (const std::string& violation : schedule.plans[i].planned.verified.violations) {
      print_check_failed(fmt::format("{}: {}", micro_batch_text(schedule, i), violation));
    }
  }
}

}  // namespace

const StrategyChoice& single_choice(const std::string& option,
                                    const std::vector<StrategyChoice>& choices) {
  if (choices.size() != 1) {
    fail_argument("{}: expected one strategy, found {}; 'contextile compare' takes several", option,
                  choices.size());
  }
  return choices.front();
}

void check_any_schedules(std::string_view option, const std::vector<StrategyChoice>& choices) {
  const auto schedules = [](const StrategyChoice& choice) {
    return find_strategy(choice.name).has_schedule();
  };
  if (std::ranges::any_of(choices, schedules)) return;
  std::vector<std::string> names;
  names.reserve(choices.size());
  for (const StrategyChoice& choice : choices) names.push_back(choice.name);
  fail_argument("{}: expected a strategy that schedules micro-batches ({}), found {}", option,
                scheduling_strategies(), quote(fmt::format("{}", fmt::join(names, ","))));
}

void add_group_strategy_option(CLI::App& app, std::vector<StrategyChoice>& choices,
                               const std::string& help) {
  add_value(app, "--group-strategy", {"NAME[:KEY=VALUE,...]", help, "as the original, zigzag"},
            [&choices](const std::string& text) { choices = parse_strategies(text); });
}

void add_schedule_options(CLI::App& app, ScheduleOptions& options) {
  add_switch(app, "--schedule", options.schedule,
             "micro-batches as the original runs them: FILE lists rounds and groups of ranks, the "
             "plans go to FILE.0, FILE.1, ...");
  add_group_strategy_option(app, options.group_strategy,
                            "with --schedule: the strategy inside the groups");
}

void check_schedule(const ScheduleOptions& options, const StrategyChoice& choice,
                    const std::string& output_path, bool explain) {
  if (!options.schedule) {
    if (!options.group_strategy.empty()) {
      fail_argument("--group-strategy: expected --schedule as well, found none");
    }
    return;
  }
  if (explain) fail_argument("--explain: expected one plan, found --schedule");
  if (output_path == kStandardStream) {
    fail_argument("--output: expected a file with --schedule, found {}", quote(output_path));
  }
  if (!options.group_strategy.empty()) {
    static_cast<void>(
        find_strategy(single_choice("--group-strategy", options.group_strategy).name));
  }
  if (find_strategy(choice.name).has_schedule()) return;
  fail_argument("--schedule: expected a strategy that schedules micro-batches ({}), found {}",
                scheduling_strategies(), quote(choice.name));
}

int plan_schedules(const ScheduleOptions& options, const PlanInput& input,
                   const StrategyChoice& choice, const std::vector<std::string>& names,
                   const ScheduleOutput& output) {
  std::optional<StrategyChoice> inside;
  if (!options.group_strategy.empty()) inside = options.group_strategy.front();
  ProgressBar progress(static_cast<std::int64_t>(input.batches.size()));
  Json documents = Json::array();
  bool ok = true;
  for (std::size_t b = 0; b < input.batches.size(); ++b) {
    const std::string& path = names[b];
    progress.step(quote(path));
    const PlannedSchedule schedule =
        plan_schedule(input.batches[b], input.cluster, choice, input.options, inside);
    std::vector<std::string> plan_files;
    for (std::size_t i = 0; i < schedule.plans.size(); ++i) {
      plan_files.push_back(fmt::format("{}.{}", path, i));
      check_no_input("--output", plan_files.back(), output.inputs);
    }
    if (schedule.ok()) {
      write_schedule(schedule, path, plan_files);
    } else {
      report_broken(schedule);
      ok = false;
    }
    const SchedulePrediction prediction =
        predict_schedule(schedule, input.options.linear_us_per_token.value_or(0));
    if (output.json) {
      Json document = {{"file", path}, {"written", schedule.ok()}};
      document.update(schedule_json(schedule, plan_files));
      document["schedule_s"] = schedule.schedule_s;
      document["plan_s"] = schedule.plan_s;
      document["predicted"] = schedule_prediction_json(prediction);
      documents.push_back(std::move(document));
    } else if (output.csv) {
      for (Json row : rounds_table(schedule, prediction).json()) {
        row["file"] = path;
        documents.push_back(std::move(row));
      }
    } else {
      print((b == 0 ? "" : "\n") +
            schedule_text(schedule, prediction, input.batches[b].num_tokens()) +
            fmt::format("Scheduled in {} ms, planned and verified in {} ms; written to {}.\n",
                        format_number(1e3 * schedule.schedule_s),
                        format_number(1e3 * schedule.plan_s),
                        schedule.ok() ? printable(path) : "no file"));
    }
  }
  if (output.json) {
    print_json(
        {{"command", "plan"}, {"seed", input.options.seed}, {"schedules", std::move(documents)}});
  } else if (output.csv) {
    print(table_of(documents).csv());
  }
  return ok ? kExitOk : kExitCheckFailed;
}

}  // namespace contextile
