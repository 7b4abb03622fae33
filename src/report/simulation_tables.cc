#include "report/simulation_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "report/json.h"

namespace contextile {
namespace {

constexpr Activity kActivities[] = {Activity::kAttention, Activity::kMerge, Activity::kLaunch,
                                    Activity::kExposed};
constexpr std::size_t kIdle = std::size(kActivities);

// StateTimes of a device in the order of the tables: the activities, then idle.
using StateTimes = std::array<double, kIdle + 1>;

std::string time_name(std::size_t i) {
  return i == kIdle ? "idle" : std::string(to_string(kActivities[i]));
}

StateTimes seconds_of(const DeviceTimes& device) {
  StateTimes seconds{};
  for (std::size_t i = 0; i < kIdle; ++i) seconds[i] = 1e-6 * device.of(kActivities[i]);
  seconds[kIdle] = 1e-6 * device.idle_us;
  return seconds;
}

// A direction's simulation and the plan's statistics of it.
struct Outcome {
  Direction direction = Direction::kForward;
  const SimulatedDirection& simulated;
  const DirectionStats& stats;
  StateTimes mean_s{};
  StateTimes max_s{};
};

Outcome outcome_of(Direction direction, const SimulatedDirection& simulated,
                   const DirectionStats& stats) {
  Outcome outcome{direction, simulated, stats};
  for (const DeviceTimes& device : simulated.devices) {
    const StateTimes seconds = seconds_of(device);
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

// One row per direction.
Table directions_of(const std::vector<Outcome>& outcomes) {
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

// One row per device and direction.
Table devices_of(const std::vector<Outcome>& outcomes) {
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

}  // namespace

Table simulation_table(const Simulation& simulation, const PlanStats& stats) {
  return directions_of(outcomes_of(simulation, stats));
}

Table simulated_devices_table(const Simulation& simulation, const PlanStats& stats) {
  return devices_of(outcomes_of(simulation, stats));
}

std::string simulated_devices_text(const Simulation& simulation, const PlanStats& stats) {
  std::string text;
  for (const Outcome& outcome : outcomes_of(simulation, stats)) {
    text += fmt::format("\n{}, every device\n{}", to_string(outcome.direction),
                        devices_of({outcome}).text());
  }
  return text;
}

std::string simulation_text(const Simulation& simulation, const PlanStats& stats) {
  const std::vector<Outcome> outcomes = outcomes_of(simulation, stats);
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

Json simulation_json(const Simulation& simulation, const PlanStats& stats) {
  const std::vector<Outcome> outcomes = outcomes_of(simulation, stats);
  const Json rows = directions_of(outcomes).json();
  const Json devices = devices_of(outcomes).json();
  Json document = {{"time_s", 1e-6 * simulation.time_us()}};
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
  return document;
}

}  // namespace contextile
