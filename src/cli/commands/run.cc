// contextile run: executes a plan on real ranks and checks the result.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "cli/commands/command.h"
#include "cli/help.h"
#include "cli/options/plan_cluster.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/this_machine.h"
#include "contextile/cluster.h"
#include "contextile/executor.h"
#include "contextile/kernel.h"
#include "contextile/oracle.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/plan_stats.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"
#include "report/json.h"
#include "report/plan_tables.h"
#include "report/run_tables.h"
#include "report/table.h"

namespace contextile {
namespace {

// Comparing is on by default up to this cost of the oracle: a few seconds.
constexpr double kMaxDefaultCompareFlops = 1e11;

struct RunCommandOptions {
  std::string plan_path;
  std::string cluster;  // empty: not checked, predicted on this machine
  bool predict = false;
  std::string transport = "inproc";
  std::string kernel;  // empty: the preferred one for the dtype
  std::optional<bool> compare;
  std::optional<std::uint64_t> seed;
  std::int32_t repeats = 1;
  double timeout_s = 60;
  bool json = false;
  bool csv = false;
};

RunOptions run_options(const RunCommandOptions& options, const Plan& plan) {
  RunOptions run;
  run.kernel = options.kernel;
  run.seed = given_or_random(options.seed);
  run.compare = options.compare.value_or(oracle_flops(plan) < kMaxDefaultCompareFlops);
  run.repeats = options.repeats;
  run.transport.timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1e3));
  return run;
}

int run(const RunCommandOptions& options) {
  check_formats(options.json, options.csv);
  check_transport(options.transport);
  static_cast<void>(find_kernel(options.kernel));
  const auto plan = std::make_shared<const Plan>(load_plan(options.plan_path));
  std::optional<Cluster> cluster;
  if (!options.cluster.empty()) cluster = cluster_of_plan(*plan, options.cluster);
  const VerifyReport verified = verify(*plan);
  if (!verified.ok()) {
    if (options.json) {
      print_json({{"command", "run"},
                  {"file", options.plan_path},
                  {"ok", false},
                  {"verify", verify_json(verified)}});
    } else {
      print(verify_text(verified, stdout_shows_colour()));
    }
    return kExitCheckFailed;
  }
  check_run_memory(*plan, statistics(*plan));
  const RunOptions settings = run_options(options, *plan);
  const std::string kernel(find_kernel(settings.kernel, plan->shape.dtype).name());
  std::optional<Simulation> predicted;
  if (options.predict) {
    if (!cluster) {
      cluster = measured_machine(plan->nodes, plan->devices_per_node, plan->shape, kernel);
    }
    predicted = simulate(*plan, *cluster);
  }
  const RunReport report = run_plan(plan, settings);
  if (options.csv) {
    Json masks = run_json(report)["masks"];
    if (predicted) add_prediction(*predicted, masks);
    print(table_of(run_rows_json(masks)).csv());
  } else if (options.json) {
    Json document = {{"command", "run"},      {"file", options.plan_path},
                     {"kernel", kernel},      {"transport", options.transport},
                     {"seed", settings.seed}, {"plan", plan_json(*plan)}};
    document.update(run_json(report));
    if (predicted) add_prediction(*predicted, document["masks"]);
    print_json(document);
  } else {
    print(fmt::format("plan      {}\n", options.plan_path) + describe_plan(*plan) +
          fmt::format("run       {} ranks on {}, kernel {}, seed {}\n\n", plan->num_devices(),
                      options.transport, kernel, settings.seed) +
          run_text(report, stdout_shows_colour()));
    if (predicted) {
      const std::string machine = options.cluster.empty() ? "for this machine (a quick profile)"
                                  : cluster->name == "local"
                                      ? "on local (round guesses: without --cluster it is measured)"
                                      : "on " + printable(cluster->name);
      print(fmt::format("\ntime, predicted {} and measured here\n\n", machine) +
            run_prediction_table(report, *predicted).text());
    }
  }
  for (const std::string& failure : run_failures(report)) {
    fmt::print(stderr, "contextile: check failed: {}\n", failure);
  }
  return report.ok() ? kExitOk : kExitCheckFailed;
}

}  // namespace

Action add_run_command(CLI::App& app) {
  auto options = std::make_shared<RunCommandOptions>();
  add_plan_argument(app, options->plan_path);
  add_transport_option(app, options->transport);
  add_kernel_option(app, options->kernel, "attention kernel");
  add_toggle(app, "compare", "check against the fp64 oracle and one device",
             "when the oracle costs less than 1e11 FLOPs",
             [options](bool compare) { options->compare = compare; });
  add_random_seed_option(app, options->seed, "seed of the random inputs");
  add_size<std::int32_t>(app, "--repeats", options->repeats, 1,
                         {"N", "timed repetitions, the fastest counts", ""});
  add_value(app, "--timeout",
            {"SECONDS", "give up when nothing moves between ranks for that long", "60"},
            [options](const std::string& text) {
              options->timeout_s = parse_number("--timeout", text);
              if (options->timeout_s < 1e-3 || options->timeout_s > 1e9) {
                fail_argument("--timeout: expected 0.001 to 1e9 seconds, found {}", quote(text));
              }
            });
  add_cluster_option(app, options->cluster,
                     "refuse a plan that is for another number of devices; with --predict, the "
                     "machine to predict on",
                     "not checked; this machine, measured for some seconds");
  add_switch(app, "--predict", options->predict,
             "print the times that simulate predicts beside the measured ones");
  add_json_option(app, options->json);
  add_csv_option(app, options->csv, "a row for each mask and direction");
  add_examples(app, {"contextile plan -o small.plan --dataset prolong --tokens 512 --scale 0.01 "
                     "--cluster local:1x4",
                     "contextile run small.plan --seed 3",
                     "contextile run small.plan --predict --repeats 3"});
  return [options] { return run(*options); };
}

}  // namespace contextile
