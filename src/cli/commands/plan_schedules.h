// contextile plan --schedule: micro-batches of groups of ranks, each with a plan.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/app.h"
#include "contextile/planner.h"

namespace contextile {

struct ScheduleOptions {
  bool schedule = false;
  std::vector<StrategyChoice> group_strategy;  // empty: that of the original
};
struct ScheduleOutput {
  bool json = false;
  bool csv = false;
  std::vector<std::string> inputs = {};  // files that are read: no plan may replace one
};

// Returns the only one. Throws InvalidArgument when there are several.
[[nodiscard]] const StrategyChoice& single_choice(const std::string& option,
                                                  const std::vector<StrategyChoice>& choices);

// Throws InvalidArgument naming the option unless one of the strategies schedules micro-batches.
void check_any_schedules(std::string_view option, const std::vector<StrategyChoice>& choices);

void add_group_strategy_option(CLI::App& app, std::vector<StrategyChoice>& choices,
                               const std::string& help);
// --schedule and --group-strategy.
void add_schedule_options(CLI::App& app, ScheduleOptions& options);
// Throws InvalidArgument on options that contradict each other, and on a strategy that schedules no
// micro-batches.
void check_schedule(const ScheduleOptions& options, const StrategyChoice& choice,
                    const std::string& output_path, bool explain);
// Schedules every batch, writes schedule b to names[b] and its plans to names[b].0, names[b].1, …
// A schedule with a plan that does not verify is not written. Returns the exit code.
int plan_schedules(const ScheduleOptions& options, const PlanInput& input,
                   const StrategyChoice& choice, const std::vector<std::string>& names,
                   const ScheduleOutput& output);

}  // namespace contextile
