#include "contextile/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/out_of_memory.h"
#include "base/parallel_for.h"
#include "plan/size_text.h"
#include "predict/simulate/event_machine.h"
#include "predict/simulate/program_costs.h"
#include "predict/simulate/what_if.h"

namespace contextile {
namespace {

// Attention times of a device by stage, which is the number of waits before the call.
std::vector<double> attention_of_stages(const TimedProgram& program) {
  std::vector<double> us(1);
  for (const TimedStep& step : program.steps) {
    if (step.is_wait) us.push_back(0);
    if (step.activity == Activity::kAttention) us.back() += step.duration_us;
  }
  return us;
}

// Sets the attention time of every stage. Calls are scaled in proportion; a stage without calls
// gets one before its end. Stages that the device does not have are added to its last one.
void set_attention(std::vector<double> wanted_us, TimedProgram& program) {
  const std::vector<double> has_us = attention_of_stages(program);
  wanted_us.resize(std::max(wanted_us.size(), has_us.size()));
  // Adds stages that this device lacks to its last one.
  for (; wanted_us.size() > has_us.size(); wanted_us.pop_back()) {
    wanted_us[wanted_us.size() - 2] += wanted_us.back();
  }
  std::vector<TimedStep> steps;
  std::size_t stage = 0;
  const auto end_stage = [&] {
    if (has_us[stage] == 0 && wanted_us[stage] > 0) {
      steps.push_back({.activity = Activity::kAttention, .duration_us = wanted_us[stage]});
    }
    ++stage;
  };
  for (TimedStep& step : program.steps) {
    if (step.is_wait) end_stage();
    if (step.activity == Activity::kAttention && has_us[stage] > 0) {
      step.duration_us *= wanted_us[stage] / has_us[stage];
    }
    steps.push_back(std::move(step));
  }
  end_stage();
  program.steps = std::move(steps);
}

// Gives every device the mean attention time in each stage.
void even_out_attention(std::vector<TimedProgram>& programs) {
  std::vector<double> mean_us;
  for (const TimedProgram& program : programs) {
    const std::vector<double> stages_us = attention_of_stages(program);
    mean_us.resize(std::max(mean_us.size(), stages_us.size()));
    for (std::size_t s = 0; s < stages_us.size(); ++s) {
      mean_us[s] += stages_us[s] / static_cast<double>(programs.size());
    }
  }
  for (TimedProgram& program : programs) set_attention(mean_us, program);
}

// Appends the steps of a later round to those of earlier rounds, with launch ids of their own.
void append(TimedProgram&& later, TimedProgram& program) {
  std::int32_t first_id = 0;
  for (const TimedStep& step : program.steps) first_id = std::max(first_id, step.launch_id + 1);
  for (TimedStep& step : later.steps) {
    if (step.launch_id >= 0) step.launch_id += first_id;
    program.steps.push_back(std::move(step));
  }
  program.flops += later.flops;
}

// Costs of one round and mask, several devices at a time. Neighbours stay together, because they
// may split the heads of one call.
class RoundCosts {
 public:
  RoundCosts(const Plan& plan, const Cluster& cluster, std::size_t round, std::size_t mask)
      : num_devices_(plan.num_devices()),
        index_(plan.rounds[round].masks[mask].mask, plan.rounds[round].blocks) {
    for (std::int32_t first = 0; first < num_devices_; first += kDevicesOfShare) {
      shares_.push_back(
          std::make_unique<ProgramCosts>(plan, cluster, round, mask, index_, Rank{first},
                                         std::min(kDevicesOfShare, num_devices_ - first)));
    }
  }

  [[nodiscard]] std::vector<TimedProgram> of(Direction direction) {
    std::vector<TimedProgram> programs(static_cast<std::size_t>(num_devices_));
    parallel_for(std::size_t{0}, shares_.size(), [&](std::size_t share) {
      const std::int32_t first = static_cast<std::int32_t>(share) * kDevicesOfShare;
      const std::int32_t last = std::min(num_devices_, first + kDevicesOfShare);
      for (std::int32_t d = first; d < last; ++d) {
        programs[static_cast<std::size_t>(d)] = shares_[share]->of(Rank{d}, direction);
      }
    });
    return programs;
  }

 private:
  static constexpr std::int32_t kDevicesOfShare = 64;

  std::int32_t num_devices_;
  TileIndex index_;
  std::vector<std::unique_ptr<ProgramCosts>> shares_;  // of several devices each, by rank
};

// A collective that begins with every program and alone takes `load` times as long as the program
// in `alone`.
struct SharedCollective {
  CollectiveTraffic traffic;
  double load = 0;
  const Simulation& alone;

  // The load of program `index` of the direction.
  [[nodiscard]] CollectiveLoad load_of(Direction direction, std::size_t index) const {
    const auto& simulated = direction == Direction::kForward ? alone.forward : alone.backward;
    return {traffic, load * simulated->programs[index].time_us};
  }
};

class Simulator {
 public:
  Simulator(const Plan& plan, const Cluster& cluster, const SimulateOptions& options,
            const WhatIf& what_if, const SharedCollective* collective = nullptr)
      : plan_(plan),
        cluster_(cluster),
        options_(options),
        what_if_(what_if),
        collective_(collective) {}

  Simulation run() {
    for (std::size_t r = 0; r < plan_.rounds.size(); ++r) {
      for (std::size_t m = 0; m < plan_.rounds[r].masks.size(); ++m) {
        RoundCosts costs(plan_, cluster_, r, m);
        for (const Direction direction : kDirections) {
          if (plan_.rounds[r].has_direction(m, direction)) {
            std::vector<TimedProgram> programs = timed_programs(costs, direction);
            charge_call(programs, m, direction);
            add_programs(std::move(programs), r, m, direction);
          }
        }
      }
    }
    for (auto& [key, programs] : joined_)
      run_programs(std::move(programs), 0, key.second, key.first);
    for (auto* direction : {&simulation_.forward, &simulation_.backward}) {
      if (*direction) finish(**direction);
    }
    return std::move(simulation_);
  }

  // After `run`, if there is a collective.
  [[nodiscard]] SharedTimes shared_times() { return std::move(shared_); }

 private:
  SimulatedDirection& result_of(Direction direction) {
    auto& result = direction == Direction::kForward ? simulation_.forward : simulation_.backward;
    if (!result) {
      result.emplace();
      result->devices.resize(static_cast<std::size_t>(plan_.num_devices()));
    }
    return *result;
  }

  [[nodiscard]] std::vector<TimedProgram> timed_programs(RoundCosts& costs,
                                                         Direction direction) const {
    std::vector<TimedProgram> programs = costs.of(direction);
    if (what_if_.even_attention) even_out_attention(programs);
    return programs;
  }

  // The host of every device begins the call in the direction's first round.
  void charge_call(std::vector<TimedProgram>& programs, std::size_t m, Direction direction) {
    const bool is_first =
        hosts_.try_emplace({direction, m}, std::vector<double>(programs.size())).second;
    if (!is_first) return;
    const double us = cluster_.engine.host_begin_us(plan_.sequences.size());
    for (TimedProgram& program : programs) {
      if (!program.steps.empty()) program.steps.front().host_us += us;
    }
  }

  // Runs the programs of a round, or collects them if rounds are joined.
  void add_programs(std::vector<TimedProgram> programs, std::size_t r, std::size_t m,
                    Direction direction) {
    if (!what_if_.without_barriers) {
      run_programs(std::move(programs), r, m, direction);
      return;
    }
    std::vector<TimedProgram>& joined = joined_[{direction, m}];
    joined.resize(programs.size());
    for (std::size_t d = 0; d < programs.size(); ++d) append(std::move(programs[d]), joined[d]);
  }

  // Simulates one program of every device and adds its times to the direction.
  void run_programs(std::vector<TimedProgram> programs, std::size_t r, std::size_t m,
                    Direction direction) {
    SimulatedDirection& result = result_of(direction);
    for (const TimedProgram& program : programs) result.flops += program.flops;
    Machine machine(cluster_, std::move(programs),
                    fmt::format("round {}, mask {} ({}), {}", r, m, plan_.rounds[r].masks[m].name,
                                to_string(direction)),
                    options_, what_if_.unlimited,
                    collective_ != nullptr ? collective_->load_of(direction, result.programs.size())
                                           : CollectiveLoad());
    std::vector<double>& hosts = hosts_.at({direction, m});
    machine.set_hosts(hosts);
    machine.run();
    hosts = machine.hosts();
    (direction == Direction::kForward ? shared_.forward_us : shared_.backward_us)
        .push_back(std::max(machine.time_us(), machine.collective_end_us()));
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
      program.idle_us.push_back(times.idle_us);
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
  const WhatIf& what_if_;
  const SharedCollective* collective_;
  // Without barriers: programs of every device, by direction and mask.
  std::map<std::pair<Direction, std::size_t>, std::vector<TimedProgram>> joined_;
  // When hosts have issued the rounds before, from the start of the next one, likewise.
  std::map<std::pair<Direction, std::size_t>, std::vector<double>> hosts_;
  Simulation simulation_;
  SharedTimes shared_;
};

// Runs the simulator with memory for it, or tells what did not fit.
template <typename Run>
auto run_simulator(const Plan& plan, const Cluster& cluster, const Run& run) {
  check_whole(plan, "simulate");
  check_cluster(cluster);
  CONTEXTILE_CHECK(
      cluster.nodes == plan.nodes && cluster.devices_per_node == plan.devices_per_node,
      "simulate: expected a cluster of {} nodes x {} devices, as the plan's, found {} x {}",
      plan.nodes, plan.devices_per_node, cluster.nodes, cluster.devices_per_node);
  return with_memory_for([&] { return "the simulation of " + size_text(plan); }, run);
}

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

std::vector<std::pair<Direction, const SimulatedDirection*>> Simulation::directions() const& {
  std::vector<std::pair<Direction, const SimulatedDirection*>> directions;
  if (forward) directions.emplace_back(Direction::kForward, &*forward);
  if (backward) directions.emplace_back(Direction::kBackward, &*backward);
  return directions;
}

Simulation simulate(const Plan& plan, const Cluster& cluster, const SimulateOptions& options) {
  return simulate_if(plan, cluster, options, {});
}

Simulation simulate_if(const Plan& plan, const Cluster& cluster, const SimulateOptions& options,
                       const WhatIf& what_if) {
  return run_simulator(plan, cluster,
                       [&] { return Simulator(plan, cluster, options, what_if).run(); });
}

SharedTimes simulate_shared(const Plan& plan, const Cluster& cluster,
                            const CollectiveTraffic& traffic, double load,
                            const Simulation& alone) {
  const SharedCollective collective{traffic, load, alone};
  return run_simulator(plan, cluster, [&] {
    const WhatIf what_if;
    const SimulateOptions options;
    Simulator simulator(plan, cluster, options, what_if, &collective);
    static_cast<void>(simulator.run());
    return simulator.shared_times();
  });
}

}  // namespace contextile
