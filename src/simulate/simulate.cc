#include "contextile/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "simulate/machine.h"
#include "simulate/program_costs.h"

namespace contextile {
namespace {

bool has_direction(const Plan& plan, Direction direction) {
  for (const PlanRound& round : plan.rounds) {
    for (const DeviceProgram& device : round.devices) {
      for (const ProgramPair& pair : device.programs) {
        if (pair.of(direction)) return true;
      }
    }
  }
  return false;
}

class DirectionSimulation {
 public:
  DirectionSimulation(const Plan& plan, const Cluster& cluster, Direction direction,
                      const SimulateOptions& options)
      : plan_(plan), cluster_(cluster), direction_(direction), options_(options) {
    result_.devices.resize(static_cast<std::size_t>(plan.num_devices()));
  }

  SimulatedDirection run() {
    for (std::size_t r = 0; r < plan_.rounds.size(); ++r) {
      for (std::size_t m = 0; m < plan_.rounds[r].masks.size(); ++m) add_program(r, m);
    }
    const double num_devices = plan_.num_devices();
    for (const DeviceTimes& device : result_.devices) {
      result_.attention_us += device.of(Activity::kAttention) / num_devices;
      result_.exposed_us += device.of(Activity::kExposed) / num_devices;
    }
    const double peak = 1e12 * cluster_.attention_tflops * num_devices * result_.time_us * 1e-6;
    result_.mfu = peak > 0 ? result_.flops / peak : 0;
    return std::move(result_);
  }

 private:
  void add_program(std::size_t r, std::size_t m) {
    const PlanRound& round = plan_.rounds[r];
    if (round.devices.empty() || !round.devices.front().programs[m].of(direction_)) return;
    ProgramCosts costs(plan_, cluster_, r, m, direction_);
    std::vector<TimedProgram> programs;
    for (std::int32_t d = 0; d < plan_.num_devices(); ++d) {
      programs.push_back(costs.of(Rank{d}));
      result_.flops += programs.back().flops;
    }
    Machine machine(
        cluster_, std::move(programs),
        fmt::format("round {}, mask {} ({}), {}", r, m, round.masks[m].name, to_string(direction_)),
        options_);
    machine.run();
    SimulatedProgram& program = result_.programs.emplace_back();
    program.round = static_cast<std::int32_t>(r);
    program.mask = static_cast<std::int32_t>(m);
    program.time_us = machine.time_us();
    program.activities = std::move(machine.activities());
    program.messages = std::move(machine.messages());
    std::stable_sort(
        program.activities.begin(), program.activities.end(),
        [](const ActivitySpan& a, const ActivitySpan& b) { return a.device < b.device; });
    result_.time_us += program.time_us;
    result_.intra_bytes += machine.intra_bytes();
    result_.inter_bytes += machine.inter_bytes();
    for (std::size_t d = 0; d < result_.devices.size(); ++d) {
      const DeviceTimes& times = machine.devices()[d];
      for (std::size_t a = 0; a < times.activity_us.size(); ++a) {
        result_.devices[d].activity_us[a] += times.activity_us[a];
      }
      result_.devices[d].idle_us += times.idle_us;
    }
  }

  const Plan& plan_;
  const Cluster& cluster_;
  Direction direction_;
  const SimulateOptions& options_;
  SimulatedDirection result_;
};

}  // namespace

std::string_view to_string(Activity activity) {
  switch (activity) {
    case Activity::kAttention:
      return "attention";
    case Activity::kMerge:
      return "merge";
    case Activity::kLaunch:
      return "launch";
    case Activity::kExposed:
      return "exposed";
  }
  fail_argument("activity: expected attention, merge, launch or exposed, found {}",
                static_cast<int>(activity));
}

Simulation simulate(const Plan& plan, const Cluster& cluster, const SimulateOptions& options) {
  check_cluster(cluster);
  CONTEXTILE_CHECK(
      cluster.nodes == plan.nodes && cluster.devices_per_node == plan.devices_per_node,
      "simulate: expected a cluster of {} nodes x {} devices, as the plan's, found {} x {}",
      plan.nodes, plan.devices_per_node, cluster.nodes, cluster.devices_per_node);
  Simulation simulation;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    if (!has_direction(plan, direction)) continue;
    SimulatedDirection result = DirectionSimulation(plan, cluster, direction, options).run();
    (direction == Direction::kForward ? simulation.forward : simulation.backward) =
        std::move(result);
  }
  return simulation;
}

}  // namespace contextile
