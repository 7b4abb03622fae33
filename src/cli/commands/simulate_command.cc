// contextile simulate: the time of a plan on a cluster, and the reasons for it.
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "base/replaced_file.h"
#include "cli/commands/contextile_program.h"
#include "cli/help.h"
#include "cli/options/outputs.h"
#include "cli/options/plan_cluster.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/report.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"
#include "report/json.h"
#include "report/plan_tables.h"
#include "report/simulation_tables.h"
#include "report/table.h"
#include "report/why.h"

namespace contextile {
namespace {

struct SimulateCommandOptions {
  std::string plan_path;
  std::string cluster;  // empty: the plan's preset
  std::int32_t tp = 1;
  std::int32_t pp = 1;
  std::string trace_path;  // empty: no trace
  bool why = false;
  bool per_device = false;
  bool json = false;
  bool csv = false;
};

Cluster cluster_of(const SimulateCommandOptions& options, const Plan& plan) {
  if (options.tp == 1 && options.pp == 1) return cluster_of_plan(plan, options.cluster);
  if (options.cluster.empty()) {
    fail_argument("--tp, --pp: expected --cluster with the whole machine as well, found none");
  }
  const Cluster group = load_cluster(options.cluster).group(options.tp, options.pp);
  check_same_cluster(plan, group, options.cluster);
  return group;
}

int run(const SimulateCommandOptions& options) {
  check_formats(options.json, options.csv);
  if (options.why && options.csv) {
    fail_argument("--why: expected text or --json, found --csv");
  }
  std::optional<ReplacedFile> trace;
  if (!options.trace_path.empty()) trace.emplace(options.trace_path);
  const Plan plan = load_plan(options.plan_path);
  const Cluster cluster = cluster_of(options, plan);
  ProgressBar progress(options.why ? 3 : 2);
  progress.step(quote(options.plan_path));
  const VerifyReport verified = verify(plan, {.progress = progress.within_step()});
  if (!verified.ok()) {
    if (options.json) {
      print_json({{"command", "simulate"},
                  {"file", options.plan_path},
                  {"ok", false},
                  {"verify", verify_json(verified)}});
    } else {
      print(verify_text(verified, stdout_shows_colour()));
    }
    return kExitCheckFailed;
  }
  const PlanStats stats = statistics(plan);
  progress.step(quote(options.plan_path));
  const Simulation simulation =
      simulate(plan, cluster,
               {.timeline = options.why || trace.has_value(), .progress = progress.within_step()});
  if (trace) {
    write_trace(plan, cluster, simulation, trace->stream());
    trace->commit();
  }
  std::vector<TimeCause> causes;
  if (options.why) {
    progress.step("what the time would be without each cause");
    causes = causes_of_time(plan, cluster, simulation);
  }
  if (options.json) {
    Json document = {{"command", "simulate"},
                     {"file", options.plan_path},
                     {"cluster", cluster_json(cluster)},
                     {"plan", plan_json(plan)}};
    document.update(simulation_json(simulation, stats));
    if (options.why) document["why"] = why_json(plan, cluster, simulation, causes);
    if (trace) document["trace"] = options.trace_path;
    print_json(document);
  } else if (options.csv) {
    print((options.per_device ? simulated_devices_table(simulation, stats)
                              : simulation_table(simulation, stats))
              .csv());
  } else {
    print(fmt::format("plan      {}\n", printable(options.plan_path)) + describe_plan(plan) +
          fmt::format("on        {}, {} x {} devices\n\n", printable(cluster.name), cluster.nodes,
                      cluster.devices_per_node) +
          simulation_text(simulation, stats));
    if (options.per_device) print(simulated_devices_text(simulation, stats));
    if (options.why) print(why_text(plan, cluster, simulation, causes));
  }
  return kExitOk;
}

}  // namespace

Action add_simulate_command(CLI::App& app) {
  auto options = std::make_shared<SimulateCommandOptions>();
  add_plan_argument(app, options->plan_path);
  add_cluster_option(app, options->cluster,
                     "the machine to predict on, of as many devices as the plan's",
                     "the preset the plan is for");
  add_size<std::int32_t>(app, "--tp", options->tp, 1,
                         {"N", "N devices of --cluster act as one rank, as in plan --tp", ""});
  add_size<std::int32_t>(app, "--pp", options->pp, 1,
                         {"N", "pipeline stages of --cluster, as in plan --pp", ""});
  add_output(app, "--trace",
             {"FILE", "also write a timeline: Chrome trace events, which Perfetto opens", ""},
             [options](const std::string& path) { options->trace_path = path; });
  add_switch(app, "--why", options->why,
             "also the critical path, the five largest causes of the time with what the plan would "
             "take without them, and the longest waits");
  add_switch(app, "--per-device", options->per_device, "also one line for every device");
  add_json_option(app, options->json);
  add_switch(app, "--csv", options->csv,
             "a table as CSV, in seconds and bytes: one row per direction, with --per-device one "
             "row per device");
  add_examples(app, {"contextile simulate batch.plan --why",
                     "contextile simulate batch.plan --trace trace.json",
                     "contextile simulate batch.plan --cluster dgx-h100:4x8 --per-device"});
  return [options] { return run(*options); };
}

}  // namespace contextile
