// contextile-labs search: a search without some of its phases, to see what they are worth.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "cli/commands/command.h"
#include "cli/commands/plan_schedules.h"
#include "cli/help.h"
#include "cli/options/input.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/extend/strategy.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "labs/program.h"
#include "report/json.h"
#include "report/plan_tables.h"
#include "report/search_tables.h"
#include "report/table.h"

namespace contextile {
namespace {

struct SearchOptions {
  InputOptions input;
  std::vector<StrategyChoice> strategy;
  std::vector<std::string> disabled;
  bool json = false;
};

// A plan, its search, and its predicted time, forward and backward.
struct SearchedBatch {
  PlannedBatch planned;
  double predicted_us = 0;
};

// Arranges, builds and verifies. PlanOptions cannot disable phases, so that no command of
// `contextile` makes such a plan; a request of the strategy can.
SearchedBatch searched_batch(const Workload& workload, const Cluster& cluster,
                             const StrategyChoice& choice, const PlanOptions& plan_options,
                             const std::vector<std::string>& disabled) {
  const Strategy& strategy = find_strategy(choice.name);
  StrategyRequest request = request_of(choice, plan_options);
  request.disabled_phases = disabled;
  SearchReport report;
  request.searched = [&](const SearchReport& found) { report = found; };
  SearchedBatch batch;
  batch.planned = plan_arrangement(workload, cluster, strategy.arrange(workload, cluster, request),
                                   plan_options);
  batch.planned.search = std::move(report);
  batch.predicted_us = simulate(*batch.planned.plan, cluster).time_us();
  return batch;
}

void check_searches(const StrategyChoice& choice) {
  if (!find_strategy(choice.name).search_phases().empty()) return;
  fail_argument("--strategy: expected one that searches in phases, such as auto, found {}",
                quote(choice.name));
}

int run(const SearchOptions& options) {
  const StrategyChoice& choice = single_choice("--strategy", options.strategy);
  check_searches(choice);
  const PlanInput input = load_input(options.input);
  ProgressBar progress(static_cast<std::int64_t>(input.batches.size()));
  PlanOptions settings = input.options;
  settings.progress = progress.within_step();
  Json batches = Json::array();
  std::string text;
  bool ok = true;
  for (std::size_t b = 0; b < input.batches.size(); ++b) {
    progress.step(fmt::format("batch {}", b));
    const SearchedBatch batch =
        searched_batch(input.batches[b], input.cluster, choice, settings, options.disabled);
    ok = ok && batch.planned.verified.ok();
    if (options.json) {
      batches.push_back({{"predicted_us", batch.predicted_us},
                         {"verify", verify_json(batch.planned.verified)},
                         {"search", search_json(*batch.planned.search)}});
    } else {
      text += (b == 0 ? "" : "\n") + search_text(*batch.planned.search) +
              fmt::format("predicted {} µs, forward and backward\n",
                          format_number(batch.predicted_us)) +
              verify_text(batch.planned.verified, stdout_shows_colour());
    }
  }
  if (options.json) {
    print_json({{"command", "search"},
                {"strategy", choice_text(choice)},
                {"disabled", options.disabled},
                {"batches", std::move(batches)}});
  } else {
    print(text);
  }
  return ok ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action add_search_command(CLI::App& app) {
  auto options = std::make_shared<SearchOptions>();
  add_strategy_option(app, options->strategy, kQuickAuto, "which search, with its options");
  add_repeatable(
      app, "--disable",
      {"PHASE", "a phase of the search that does not run; may be given several times", "all run"},
      [options](const std::string& name) { options->disabled.push_back(name); });
  add_input_options(app, options->input);
  add_json_option(app, options->json);
  add_examples(app, {"contextile-labs search --dataset prolong --tokens 128K --seed 7 --disable "
                     "\"improve rows\" --disable \"finish rows\""});
  show_first(app, {"--strategy", "--disable", "--lengths", "--dataset", "--tokens", "--mask",
                   "--cluster", "--json"});
  return [options] { return run(*options); };
}

}  // namespace contextile
