// contextile simulate: what a plan would take on a cluster, and why.
#include "contextile/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cli/commands/command.h"
#include "cli/options/input.h"
#include "cli/options/plan_cluster.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/plan_stats.h"
#include "contextile/report.h"
#include "contextile/verify.h"
#include "report/plan_tables.h"
#include "report/json.h"
#include "report/table.h"

namespace contextile {
namespace {

struct SimulateCommandOptions {
  std::string plan_path;
  std::string cluster;  // empty: the plan's preset
  std::int32_t tp = 1;
  std::int32_t pp = 1;
  std::string trace_path;  // empty: no trace
  bool per_device = false;
  bool json = false;
  bool csv = false;
};

constexpr Activity kActivities[] = {Activity::kAttention, Activity::kMerge, Activity::kLaunch,
                                    Activity::kExposed};
constexpr std::size_t kIdle = std::size(kActivities);

// Times of a device in the order of the tables: the activities, then idle.
using Times = std::array<double, kIdle + 1>;

std::string time_name(std::size_t i) {
  return i == kIdle ? "idle" : std::string(to_string(kActivities[i]));
}

Times seconds_of(const DeviceTimes& device) {
  Times seconds{};
  for (std::size_t i = 0; i < kIdle; ++i) seconds[i] = 1e-6 * device.of(kActivities[i]);
  seconds[kIdle] = 1e-6 * device.idle_us;
  return seconds;
}

// A direction with what the plan says of it.
struct Outcome {
  Direction direction = Direction::kForward;
  const SimulatedDirection& simulated;
  const DirectionStats& stats;
  Times mean_s{};
  Times max_s{};
};

Outcome outcome_of(Direction direction, const SimulatedDirection& simulated,
                   const DirectionStats& stats) {
  Outcome outcome{direction, simulated, stats};
  for (const DeviceTimes& device : simulated.devices) {
    const Times seconds = seconds_of(device);
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      outcome.mean_s[i] += seconds[i] / static_cast<double>(simulated.devices.size());
      outcome.max_s[i] = std::max(outcome.max_s[i], seconds[i]);
    }
  }
  return outcome;
}

std::vector<Outcome> outcomes_of(const Simulation& simulation, const PlanStats& stats) {
  std::vector<Outcome> outcomes;
  if (simulation.forward && stats.forward) {
    outcomes.push_back(outcome_of(Direction::kForward, *simulation.forward, *stats.forward));
  }
  if (simulation.backward && stats.backward) {
    outcomes.push_back(outcome_of(Direction::kBackward, *simulation.backward, *stats.backward));
  }
  return outcomes;
}

// One row a direction.
Table direction_table(const std::vector<Outcome>& outcomes) {
  std::vector<Column> columns = {{"direction", "direction"},
                                 {"time_s", ""},
                                 {"mfu", ""},
                                 {"flops", ""},
                                 {"attention_share", ""}};
  for (std::size_t i = 0; i <= kIdle; ++i) {
    columns.push_back({time_name(i) + "_mean_s", ""});
    columns.push_back({time_name(i) + "_max_s", ""});
  }
  for (const char* key : {"intra_bytes", "inter_bytes", "peak_memory_bytes"}) {
    columns.push_back({key, ""});
  }
  Table table(std::move(columns));
  for (const Outcome& outcome : outcomes) {
    const SimulatedDirection& simulated = outcome.simulated;
    std::vector<Cell> cells = {
        std::string(to_string(outcome.direction)), 1e-6 * simulated.time_us, simulated.mfu,
        simulated.flops, simulated.time_us > 0 ? simulated.attention_us / simulated.time_us : 0.0};
    for (std::size_t i = 0; i <= kIdle; ++i) {
      cells.emplace_back(outcome.mean_s[i]);
      cells.emplace_back(outcome.max_s[i]);
    }
    cells.emplace_back(simulated.intra_bytes);
    cells.emplace_back(simulated.inter_bytes);
    cells.emplace_back(outcome.stats.peak_memory_bytes);
    table.add_row(std::move(cells));
  }
  return table;
}

// One row a device and direction; text shows the direction above the table.
Table device_table(std::span<const Outcome> outcomes) {
  std::vector<Column> columns = {{"direction", ""}, {"device", "device"}};
  for (std::size_t i = 0; i <= kIdle; ++i) {
    columns.push_back({time_name(i) + "_s", time_name(i) + "\nms", Format::kMilliseconds});
  }
  columns.push_back({"sent_bytes", "sent\nMB", Format::kMegabytes});
  columns.push_back({"received_bytes", "recvd\nMB", Format::kMegabytes});
  columns.push_back({"memory_bytes", "memory\nMB", Format::kMegabytes});
  Table table(std::move(columns));
  for (const Outcome& outcome : outcomes) {
    for (std::size_t d = 0; d < outcome.simulated.devices.size(); ++d) {
      std::vector<Cell> cells = {std::string(to_string(outcome.direction)),
                                 static_cast<std::int64_t>(d)};
      for (const double seconds : seconds_of(outcome.simulated.devices[d])) {
        cells.emplace_back(seconds);
      }
      const DeviceStats& stats = outcome.stats.devices[d];
      cells.emplace_back(stats.sent_bytes);
      cells.emplace_back(stats.received_bytes);
      cells.emplace_back(stats.memory_bytes);
      table.add_row(std::move(cells));
    }
  }
  return table;
}

// One row a quantity, one column a direction.
std::string quantities_text(const std::vector<Outcome>& outcomes) {
  std::vector<Column> columns = {{"quantity", "one layer of every mask"}};
  for (const Outcome& outcome : outcomes) {
    const std::string name(to_string(outcome.direction));
    columns.push_back({name, name});
  }
  Table table(std::move(columns), 24);
  const auto row = [&](const std::string& name, auto value) {
    std::vector<Cell> cells{name};
    for (const Outcome& outcome : outcomes) cells.emplace_back(std::string(value(outcome)));
    table.add_row(std::move(cells));
  };
  const auto ms = [](double seconds) { return format_cell(Cell{seconds}, Format::kMilliseconds); };
  const auto megabytes = [](std::int64_t bytes) {
    return format_cell(Cell{bytes}, Format::kMegabytes) + " MB";
  };
  const auto percent = [](double share) { return format_cell(Cell{share}, Format::kPercent); };
  row("time", [&](const Outcome& o) { return ms(1e-6 * o.simulated.time_us) + " ms"; });
  row("MFU", [&](const Outcome& o) { return percent(o.simulated.mfu); });
  row("attention of the time", [&](const Outcome& o) {
    return percent(o.simulated.time_us > 0 ? o.simulated.attention_us / o.simulated.time_us : 0);
  });
  for (std::size_t i = 0; i <= kIdle; ++i) {
    row(time_name(i) + ", mean / max", [&](const Outcome& o) {
      return fmt::format("{} / {} ms", ms(o.mean_s[i]), ms(o.max_s[i]));
    });
  }
  row("between nodes", [&](const Outcome& o) { return megabytes(o.simulated.inter_bytes); });
  row("inside nodes", [&](const Outcome& o) { return megabytes(o.simulated.intra_bytes); });
  row("peak memory", [&](const Outcome& o) { return megabytes(o.stats.peak_memory_bytes); });
  return table.text();
}

Json document_of(const SimulateCommandOptions& options, const Plan& plan, const Cluster& cluster,
                 const Simulation& simulation, const std::vector<Outcome>& outcomes) {
  Json document = {{"command", "simulate"},
                   {"file", options.plan_path},
                   {"cluster", cluster_json(cluster)},
                   {"plan", plan_json(plan)},
                   {"time_s", 1e-6 * simulation.time_us()}};
  const Json rows = direction_table(outcomes).json();
  const Json devices = device_table(outcomes).json();
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const std::string name(to_string(outcomes[i].direction));
    Json direction = rows[i];
    direction.erase("direction");
    direction["programs"] = Json::array();
    for (const SimulatedProgram& program : outcomes[i].simulated.programs) {
      direction["programs"].push_back(
          {{"round", program.round}, {"mask", program.mask}, {"time_s", 1e-6 * program.time_us}});
    }
    direction["devices"] = Json::array();
    for (Json device : devices) {
      if (device["direction"] != name) continue;
      device.erase("direction");
      direction["devices"].push_back(std::move(device));
    }
    document[name] = std::move(direction);
  }
  if (!options.trace_path.empty()) document["trace"] = options.trace_path;
  return document;
}

void save_trace(const Plan& plan, const Simulation& simulation, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  if (file) write_trace(plan, simulation, file);
  if (!file.flush()) {
    throw OutputError(fmt::format("{}: expected to write the trace, but a write failed", path));
  }
}

Cluster cluster_of(const SimulateCommandOptions& options, const Plan& plan) {
  if (options.tp == 1 && options.pp == 1) return cluster_of_plan(plan, options.cluster);
  if (options.cluster.empty()) {
    fail_argument("--tp, --pp: expected --cluster with the whole machine beside them, found none");
  }
  const Cluster group = load_cluster(options.cluster).group(options.tp, options.pp);
  check_same_cluster(plan, group, options.cluster);
  return group;
}

int run(const SimulateCommandOptions& options) {
  check_formats(options.json, options.csv);
  check_no_input("--trace", options.trace_path, {options.plan_path, options.cluster});
  const Plan plan = load_plan(options.plan_path);
  const Cluster cluster = cluster_of(options, plan);
  const VerifyReport verified = verify(plan);
  if (!verified.ok()) {
    if (options.json) {
      print_json({{"command", "simulate"},
                  {"file", options.plan_path},
                  {"ok", false},
                  {"verify", verify_json(verified)}});
    } else {
      print(verify_text(verified, stdout_is_terminal()));
    }
    return kExitCheckFailed;
  }
  const PlanStats stats = statistics(plan);
  const Simulation simulation = simulate(plan, cluster, {.timeline = !options.trace_path.empty()});
  if (!options.trace_path.empty()) save_trace(plan, simulation, options.trace_path);
  const std::vector<Outcome> outcomes = outcomes_of(simulation, stats);
  if (options.json) {
    print_json(document_of(options, plan, cluster, simulation, outcomes));
  } else if (options.csv) {
    print(options.per_device ? device_table(outcomes).csv() : direction_table(outcomes).csv());
  } else {
    print(fmt::format("plan      {}\n", options.plan_path) + describe_plan(plan) +
          fmt::format("on        {}, {} x {} devices\n\n", cluster.name, cluster.nodes,
                      cluster.devices_per_node) +
          quantities_text(outcomes));
    if (!options.per_device) return kExitOk;
    for (const Outcome& outcome : outcomes) {
      print(fmt::format("\n{}, every device\n{}", to_string(outcome.direction),
                        device_table({&outcome, 1}).text()));
    }
  }
  return kExitOk;
}

}  // namespace

Action add_simulate_command(CLI::App& app) {
  auto options = std::make_shared<SimulateCommandOptions>();
  add_value(app, "PLAN", {"", "plan file", ""}, [options](const std::string& path) {
    options->plan_path = path;
  })->required();
  add_value(
      app, "--cluster",
      {"NAME[:NODESxDEVICES]|FILE", "the machine to predict on; as many devices as the plan's",
       "the preset the plan is for"},
      [options](const std::string& text) { options->cluster = text; });
  add_size<std::int32_t>(app, "--tp", options->tp, 1,
                         {"N", "N devices of --cluster act as one rank, as in plan --tp", ""});
  add_size<std::int32_t>(app, "--pp", options->pp, 1,
                         {"N", "pipeline stages of --cluster, as in plan --pp", ""});
  add_value(app, "--trace",
            {"FILE", "also write a timeline: Chrome trace events, which Perfetto opens", ""},
            [options](const std::string& path) { options->trace_path = path; });
  add_switch(app, "--per-device", options->per_device, "also one line for every device");
  add_json_option(app, options->json);
  add_switch(app, "--csv", options->csv,
             "a table as CSV, in seconds and bytes: one row a direction, with --per-device one row "
             "a device");
  return [options] { return run(*options); };
}

}  // namespace contextile
