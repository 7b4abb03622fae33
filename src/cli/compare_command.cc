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
#include "cli/option_types.h"
#include "cli/output.h"

namespace contextile {
namespace {

struct CompareOptions {
  InputOptions input;
  std::vector<StrategyChoice> strategies;
  bool execute = false;
  bool json = false;
  bool csv = false;
};

int run(const CompareOptions& options) {
  if (options.json && options.csv) fail_argument("expected either --json or --csv, found both");
  if (options.csv && options.execute) {
    fail_argument("--csv: expected one table, found two with --run; use --json");
  }
  const Input input = load_input(options.input);
  std::optional<std::uint64_t> run_seed;
  if (options.execute) run_seed = options.input.seed;
  const std::vector<Comparison> comparisons =
      compare_strategies(options.strategies, input, run_seed);
  if (options.json) {
    print_json({{"command", "compare"},
                {"seed", options.input.seed},
                {"cluster",
                 {{"name", input.cluster.name},
                  {"nodes", input.cluster.nodes},
                  {"devices_per_node", input.cluster.devices_per_node}}},
                {"batches", input.batches.size()},
                {"strategies", comparisons_json(comparisons)}});
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
  add_input_options(app, options->input);
  add_json_option(app, options->json);
  add_switch(app, "--csv", options->csv, "the table as CSV, in bytes, fractions and seconds");
  return [options] { return run(*options); };
}

}  // namespace contextile
