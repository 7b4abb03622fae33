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

class Simulator {
 public:
  Simulator(const Plan& plan, const Cluster& cluster, const SimulateOptions& options)
      : plan_(plan), cluster_(cluster), options_(options) {}

  Simulation run() {
    for (std::size_t r = 0; r < plan_.rounds.size(); ++r) {
      for (std::size_t m = 0; m < plan_.rounds[r].masks.size(); ++m) {
        ProgramCosts costs(plan_, cluster_, r, m);
        for (const Direction direction : kDirections) {
          if (has(plan_.rounds[r], m, direction)) add_program(costs, r, m, direction);
        }
      }
    }
    for (auto* direction : {&simulation_.forward, &simulation_.backward}) {
      if (*direction) finish(**direction);
    }
    return std::move(simulation_);
  }

 private:
  static bool has(const PlanRound& round, std::size_t mask, Direction direction) {
    return !round.devices.empty() && round.devices.front().programs[mask].of(direction);
  }

  SimulatedDirection& result_of(Direction direction) {
    auto& result = direction == Direction::kForward ? simulation_.forward : simulation_.backward;
    if (!result) {
      result.emplace();
      result->devices.resize(static_cast<std::size_t>(plan_.num_devices()));
    }
    return *result;
  }

  void add_program(ProgramCosts& costs, std::size_t r, std::size_t m, Direction direction) {
    SimulatedDirection& result = result_of(direction);
    std::vector<TimedProgram> programs;
    for (std::int32_t d = 0; d < plan_.num_devices(); ++d) {
      programs.push_back(costs.of(Rank{d}, direction));
      result.flops += programs.back().flops;
    }
    Machine machine(cluster_, std::move(programs),
                    fmt::format("round {}, mask {} ({}), {}", r, m, plan_.rounds[r].masks[m].name,
                                to_string(direction)),
                    options_);
    machine.run();
    SimulatedProgram& program = result.programs.emplace_back();
    program.round = static_cast<std::int32_t>(r);
    program.mask = static_cast<std::int32_t>(m);
    program.time_us = machine.time_us();
    program.activities = std::move(machine.activities());
    program.messages = std::move(machine.messages());
    std::stable_sort(
        program.activities.begin(), program.activities.end(),
        [](const ActivitySpan& a, const ActivitySpan& b) { return a.device < b.device; });
    result.time_us += program.time_us;
    result.intra_bytes += machine.intra_bytes();
    result.inter_bytes += machine.inter_bytes();
    for (std::size_t d = 0; d < result.devices.size(); ++d) {
      const DeviceTimes& times = machine.devices()[d];
      for (std::size_t a = 0; a < times.activity_us.size(); ++a) {
        result.devices[d].activity_us[a] += times.activity_us[a];
      }
      result.devices[d].idle_us += times.idle_us;
    }
  }

  void finish(SimulatedDirection& result) const {
    const double num_devices = plan_.num_devices();
    for (const DeviceTimes& device : result.devices) {
      result.attention_us += device.of(Activity::kAttention) / num_devices;
      result.exposed_us += device.of(Activity::kExposed) / num_devices;
    }
    const double peak =
        1e12 * cluster_.attention_tflops * cluster_.compute_slots() * result.time_us * 1e-6;
    result.mfu = peak > 0 ? result.flops / peak : 0;
  }

  const Plan& plan_;
  const Cluster& cluster_;
  const SimulateOptions& options_;
  Simulation simulation_;
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
  return Simulator(plan, cluster, options).run();
}

}  // namespace contextile
