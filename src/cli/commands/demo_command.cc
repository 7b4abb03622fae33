// contextile demo: every strategy on one real-shaped batch, planned for a cluster of 32 devices,
// then a small batch of the same shape executed for real on four in-process ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "base/replaced_file.h"
#include "base/standard_stream.h"
#include "cli/command_text.h"
#include "cli/commands/contextile_program.h"
#include "cli/comparing.h"
#include "cli/help.h"
#include "cli/options/input.h"
#include "cli/options/outputs.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/processes.h"
#include "cli/this_machine.h"
#include "contextile/planner.h"
#include "contextile/report.h"
#include "contextile/simulate.h"
#include "report/comparison_summary.h"
#include "report/table.h"

namespace contextile {
namespace {

constexpr std::int64_t kExecutedTokens = 2048;
constexpr std::int64_t kExecutedBlockTokens = 128;
constexpr std::size_t kShownStrategies = 5;

struct DemoOptions {
  std::string dataset = "longdatacollections";
  std::int64_t tokens = 131072;
  std::uint64_t seed = 1;
  bool all = false;
  std::string page_path;  // empty: no page
};

InputOptions planned_input(const DemoOptions& options, const std::string& mask) {
  InputOptions input;
  input.dataset = options.dataset;
  input.batch.tokens = options.tokens;
  input.plan.seed = options.seed;
  input.plan.max_roundings = kAnyRoundings;  // as in comparisons, for the page too
  input.workload.masks = {parse_mask_use(mask)};
  return input;
}

// Scales the same documents down; there are heads enough for four ranks of head parallelism.
InputOptions executed_input(const DemoOptions& options, const std::string& mask) {
  InputOptions input = planned_input(options, mask);
  input.batch.tokens = kExecutedTokens;
  input.batch.scale = static_cast<double>(kExecutedTokens) / static_cast<double>(options.tokens);
  input.workload.shape = {.q_heads = 8, .kv_heads = 4, .head_dim = 64, .value_dim = 64};
  input.cluster = "local:1x4";
  input.plan.block_size = kExecutedBlockTokens;
  return input;
}

// Shows every row of every table, under both masks.
bool show(const std::string& title, const InputOptions& options, bool execute) {
  const PlanInput input = load_input(options);
  std::optional<Execution> execution;
  if (execute) {
    execution = {.seed = options.plan.seed,
                 .machine = machine_of_runs(input.cluster, input.batches.front().shape, "")};
  }
  const ComparisonResult result = compare_at_terminal(input, parse_strategies("all"), execution);
  print(fmt::format("== {}\n{}\n", title,
                    comparison_text(input, result.compared, result.runs, options.plan.seed,
                                    stdout_shows_colour())));
  return report_failures(result);
}

bool show_all(const DemoOptions& options) {
  print(fmt::format("dataset {}, {} tokens, seed {}\n\n", options.dataset, options.tokens,
                    options.seed));
  bool ok = true;
  for (const char* mask : {"causal", "lambda:64,4096"}) {
    ok = show(fmt::format("planned: {}", mask), planned_input(options, mask), false) && ok;
  }
  for (const char* mask : {"causal", "lambda:16,128"}) {
    ok = show(fmt::format("executed: {}, the batch scaled to {} tokens", mask, kExecutedTokens),
              executed_input(options, mask), true) &&
         ok;
  }
  return ok;
}

// All strategies; auto with a short search, because its whole search takes longer than all the rest
// together.
std::vector<StrategyChoice> quick_strategies() {
  std::vector<StrategyChoice> choices = parse_strategies("all");
  const StrategyChoice quick = parse_strategies(kQuickAuto).front();
  std::ranges::replace_if(
      choices, [&](const StrategyChoice& choice) { return choice.name == quick.name; }, quick);
  return choices;
}

std::string batch_text(const std::string& dataset, const Workload& workload) {
  std::int64_t longest = 0;
  for (const Range& sequence : workload.sequences) longest = std::max(longest, sequence.size());
  return fmt::format("{} in {} of {}, longest {}", count(workload.num_tokens(), "token"),
                     count(static_cast<std::int64_t>(workload.sequences.size()), "document"),
                     dataset, longest);
}

// Plans the batch with every strategy and prints the best of them; the fastest one is `best`.
bool show_planned(const DemoOptions& options, std::string& best) {
  const PlanInput input = load_input(planned_input(options, "causal"));
  const ComparisonResult result = compare_at_terminal(input, quick_strategies(), std::nullopt);
  const Workload& workload = input.batches.front();
  const AttentionShape& shape = workload.shape;
  const Table fastest = fastest_table(result.compared, kShownStrategies);
  print(fmt::format("planned   {}\n", batch_text(options.dataset, workload)));
  print(fmt::format("mask      causal; {}/{} heads of {}, {}\n", shape.q_heads, shape.kv_heads,
                    shape.head_dim, to_string(shape.dtype)));
  print(fmt::format("cluster   {}, {} nodes x {} = {} devices\n", input.cluster.name,
                    input.cluster.nodes, input.cluster.devices_per_node,
                    input.cluster.num_devices()));
  print(
      fmt::format("\nthe fastest of {} strategies: one layer, forward and backward, predicted\n"
                  "x bound: over a time that no plan undercuts; MB = 1e6 bytes\n\n",
                  result.compared.size()));
  print(fastest.text(stdout_shows_colour()));
  print(others_text(result.compared, kShownStrategies));
  if (fastest.num_rows() > 0) best = std::get<std::string>(fastest.cells(0)[0]);
  return report_failures(result);
}

// Executes every strategy's plan of the small batch.
bool show_executed(const DemoOptions& options) {
  const PlanInput input = load_input(executed_input(options, "causal"));
  const ComparisonResult result =
      compare_at_terminal(input, parse_strategies("all"), Execution{.seed = options.seed});
  print(
      fmt::format("\nexecuted  the same documents scaled to {} tokens, on {} threads of this\n"
                  "          machine; errors against attention in fp64\n\n",
                  input.batches.front().num_tokens(), input.cluster.num_devices()));
  print(fastest_run_table(result.compared, result.runs, kShownStrategies)
            .text(stdout_shows_colour()));
  print(runs_text(result.compared, result.runs));
  return report_failures(result);
}

// "128K" where that is exact.
std::string tokens_text(std::int64_t tokens) {
  return tokens % 1024 == 0 ? fmt::format("{}K", tokens / 1024) : fmt::format("{}", tokens);
}

// The inputs of a page about a plan; they must outlive the page's writing.
struct SimulatedPlan {
  std::string name;
  PlannedBatch planned;
  Simulation simulation;
};

// Writes a page with the fastest plan and zigzag's, or with zigzag's alone if that is the fastest.
// Plans both again: the comparison keeps no instructions, and a page shows them.
void write_page(const DemoOptions& options, const std::string& best, std::ostream& page) {
  const PlanInput input = load_input(planned_input(options, "causal"));
  std::deque<SimulatedPlan> plans;
  std::vector<ReportedPlan> reported;
  for (const std::string& name : {best, std::string("zigzag")}) {
    if (name.empty() || (!plans.empty() && plans.front().name == name)) continue;
    PlannedBatch planned = plan_and_check(input.batches.front(), input.cluster,
                                          parse_strategies(name).front(), input.options);
    Simulation simulation = simulate(*planned.plan, input.cluster, {.timeline = true});
    plans.push_back({name, std::move(planned), std::move(simulation)});
    const SimulatedPlan& plan = plans.back();
    reported.push_back(
        {plan.name, *plan.planned.plan, input.cluster, plan.simulation, plan.planned.verified});
  }
  write_report(reported, page);
}

void show_next_steps(const DemoOptions& options, const std::string& best) {
  const std::string program = own_program();
  const std::string batch = fmt::format("--dataset {} --tokens {} --seed {}", options.dataset,
                                        tokens_text(options.tokens), options.seed);
  const auto paste = [&](const std::string& arguments) {
    print(command_text(fmt::format("{} {}", program, arguments)) + '\n');
  };
  print("\nnext: this batch as a plan file, a page about it, other documents, all rows\n");
  if (!best.empty()) {
    paste(fmt::format("plan -o batch.plan {} --strategy {} --wire original", batch, best));
    paste("report batch.plan");
  }
  paste(fmt::format("compare --dataset prolong --tokens {} --strategy dcp,fcp",
                    tokens_text(options.tokens)));
  paste(fmt::format("demo --all {}", batch));
}

int run(const DemoOptions& options) {
  CONTEXTILE_CHECK(!options.all || options.page_path.empty(),
                   "--output: expected the demo without --all, found both");
  CONTEXTILE_CHECK(options.page_path != kStandardStream,
                   "--output: expected a file, found -: results go to stdout");
  std::optional<ReplacedFile> page;  // before minutes of planning, if it cannot be written
  if (!options.page_path.empty()) page.emplace(options.page_path);
  std::string best;
  bool ok = false;
  if (options.all) {
    ok = show_all(options);
  } else {
    const bool planned = show_planned(options, best);
    ok = show_executed(options) && planned;
    print("\n");
  }
  print(ok ? "every plan verified, every result within its bound, every byte as predicted\n"
           : "a check failed\n");
  if (!options.all) show_next_steps(options, best);
  if (page) {
    write_page(options, best, page->stream());
    page->commit();
    print(fmt::format("\n{}: {} as a page, open it in a browser\n", printable(options.page_path),
                      best == "zigzag" ? best : best + " next to zigzag"));
  }
  return ok ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action add_demo_command(CLI::App& app) {
  auto options = std::make_shared<DemoOptions>();
  add_dataset_option(app, options->dataset, "length distribution to sample");
  add_size<std::int64_t>(app, "--tokens", options->tokens, 1,
                         {"N", "tokens of the planned batch", ""});
  add_size<std::uint64_t>(app, "--seed", options->seed, 0, {"N", "seed of lengths and inputs", ""});
  add_switch(app, "--all", options->all, "every row of every table, also under a lambda mask");
  add_output(app, "-o,--output",
             {"FILE", "an HTML page of the fastest plan next to zigzag's", "none"},
             [options](const std::string& path) { options->page_path = path; });
  add_examples(app, {"contextile demo -o demo.html",
                     "contextile demo --all --dataset prolong --tokens 64K"});
  return [options] { return run(*options); };
}

}  // namespace contextile
