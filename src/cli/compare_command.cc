// contextile compare: strategies on the same batches, side by side.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cli/command.h"
#include "cli/common_options.h"
#include "cli/comparison.h"
#include "cli/comparison_times.h"
#include "cli/option_types.h"
#include "cli/output.h"
#include "cli/reports.h"

namespace contextile {
namespace {

struct CompareOptions {
  InputOptions input;
  std::vector<StrategyChoice> strategies;
  bool execute = false;
  std::int32_t repeats = 1;
  bool json = false;
  bool csv = false;
};

int run(const CompareOptions& options) {
  if (options.json && options.csv) fail_argument("expected either --json or --csv, found both");
  if (options.csv && options.execute) {
    fail_argument("--csv: expected one table, found two with --run; use --json");
  }
  const Input input = load_input(options.input);
  std::optional<Execution> execution;
  if (options.execute) execution = {options.input.seed, options.repeats};
  const std::vector<Comparison> comparisons =
      compare_strategies(options.strategies, input, execution);
  if (options.json) {
    Json document = {{"command", "compare"},
                     {"seed", options.input.seed},
                     {"cluster", cluster_json(input.cluster)},
                     {"batches", input.batches.size()},
                     {"strategies", comparisons_json(comparisons)}};
    if (const auto correlation = rank_correlation(comparisons)) {
      document["rank_correlation"] = *correlation;
    }
    print_json(document);
  } else if (options.csv) {
    print(planning_table(comparisons).csv());
  } else {
    print(comparison_text(input, comparisons, stdout_is_terminal()));
  }
  return report_failures(comparisons) ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action add_compare_command(CLI::App& app) {
  auto options = std::make_shared<CompareOptions>();
  add_strategy_option(app, options->strategies, "all", "which strategies, comma-separated");
  add_switch(app, "--run", options->execute,
             "also execute every plan on in-process ranks and check it against the oracle");
  add_size<std::int32_t>(app, "--repeats", options->repeats, 1,
                         {"N", "with --run: timed repetitions, the fastest counts", ""});
  add_input_options(app, options->input);
  add_json_option(app, options->json);
  add_switch(app, "--csv", options->csv, "the table as CSV, in bytes, fractions and seconds");
  return [options] { return run(*options); };
}

}  // namespace contextile
