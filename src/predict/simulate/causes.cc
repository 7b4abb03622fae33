// The causes of a plan's time, measured by simulating the plan again without each of them.
#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "contextile/simulate.h"
#include "predict/simulate/ports.h"
#include "predict/simulate/what_if.h"
#include "predict/simulate/without_cause.h"

namespace contextile {
namespace {

// A cause below this share of the time is not worth a line.
constexpr double kLeastGain = 1e-3;
// A single port is the cause if it alone gains this share of the gain of all of its kind.
constexpr double kAloneOfAll = 0.9;

using KindSet = std::array<bool, 6>;  // by StepKind

constexpr KindSet kinds(std::initializer_list<StepKind> of) {
  KindSet set{};
  for (const StepKind kind : of) set[static_cast<std::size_t>(kind)] = true;
  return set;
}

// The kinds of path steps that belong to a cause.
KindSet kinds_of(Cause cause) {
  switch (cause) {
    case Cause::kImbalance:
    case Cause::kTiles:
    case Cause::kCalls:
      return kinds({StepKind::kAttention});
    case Cause::kMerging:
      return kinds({StepKind::kMerge, StepKind::kLaunch});
    case Cause::kLaunches:
      return kinds({StepKind::kLaunch});
    case Cause::kLatency:
      return kinds({StepKind::kLatency});
    case Cause::kNodeLinks:
    case Cause::kDeviceLinks:
    case Cause::kFlows:
      return kinds({StepKind::kTransfer});
    case Cause::kHost:
      return kinds({StepKind::kLaunch});
    case Cause::kLaunchOrder:
    case Cause::kBarriers:
      return kinds({});
    case Cause::kStolenCompute:
    case Cause::kSharedSlots:
      return kinds({StepKind::kAttention, StepKind::kMerge, StepKind::kLaunch});
  }
  fail_argument("cause: expected one of 14, found {}", static_cast<int>(cause));
}

// The cause that the rate of a port belongs to.
Cause cause_of(NetworkPort port) {
  switch (port.kind) {
    case PortKind::kDeviceOut:
    case PortKind::kDeviceIn:
      return Cause::kDeviceLinks;
    case PortKind::kNicOut:
    case PortKind::kNicIn:
      return Cause::kNodeLinks;
    case PortKind::kFlow:
      break;
  }
  return Cause::kFlows;
}

std::vector<double> attention_of_devices(const SimulatedProgram& program, std::size_t devices) {
  std::vector<double> us(devices);
  for (const ActivitySpan& span : program.activities) {
    if (span.activity == Activity::kAttention)
      us[span.device.index()] += span.end_us - span.start_us;
  }
  return us;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// One direction with its path, and the duration of each of its steps in another simulation.
class DirectionSteps {
 public:
  explicit DirectionSteps(const SimulatedDirection& simulated)
      : simulated_(simulated), path_(critical_path(simulated)) {}

  [[nodiscard]] const SimulatedDirection& simulated() const { return simulated_; }
  [[nodiscard]] const SimulatedProgram& program_of(const PathStep& step) const {
    return simulated_.programs[static_cast<std::size_t>(step.program)];
  }
  [[nodiscard]] const MessageSpan& message_of(const PathStep& step) const {
    return program_of(step).messages[static_cast<std::size_t>(step.message)];
  }

  // Time by which steps of those kinds are shorter in the other simulation.
  [[nodiscard]] double shorter_us(const SimulatedDirection& other, const KindSet& kinds) const {
    const Durations durations(other);
    double us = 0;
    for (const PathStep& step : path_) {
      if (!kinds[static_cast<std::size_t>(step.kind)]) continue;
      us += std::max(0.0, step.end_us - step.start_us - durations.of(*this, step));
    }
    return us;
  }

  [[nodiscard]] std::int64_t count(const KindSet& kinds) const {
    return std::ranges::count_if(path_, [&](const PathStep& step) {
      return kinds[static_cast<std::size_t>(step.kind)] && step.end_us > step.start_us;
    });
  }

  // Time that the path's attention would save if its devices computed as long as the mean device.
  [[nodiscard]] double beyond_mean_us() const {
    std::vector<std::vector<double>> attention_us;  // by program and device
    std::vector<double> mean_us;
    for (const SimulatedProgram& program : simulated_.programs) {
      attention_us.push_back(attention_of_devices(program, simulated_.devices.size()));
      mean_us.push_back(mean_of(attention_us.back()));
    }
    double us = 0;
    for (const PathStep& step : path_) {
      if (step.kind != StepKind::kAttention) continue;
      const auto p = static_cast<std::size_t>(step.program);
      const double excess = 1 - mean_us[p] / attention_us[p][step.device.index()];
      us += std::max(0.0, excess) * (step.end_us - step.start_us);
    }
    return us;
  }

  // Time that messages of the path queued behind others of the path, and their number.
  [[nodiscard]] std::pair<double, std::int64_t> queued() const {
    double us = 0;
    std::int64_t messages = 0;
    for (std::size_t i = 0; i + 1 < path_.size(); ++i) {
      const PathStep& next = path_[i + 1];
      if (path_[i].message < 0 || next.message < 0) continue;
      const bool is_same = path_[i].message == next.message && path_[i].program == next.program;
      if (is_same || message_of(next).queued_after < 0) continue;
      ++messages;
      for (std::size_t j = i + 1; j-- > 0 && path_[j].message == path_[i].message &&
                                  path_[j].program == path_[i].program;) {
        us += path_[j].end_us - path_[j].start_us;
      }
    }
    return {us, messages};
  }

  // Time that the devices on which the path continues have waited at barriers of rounds, and the
  // number of barriers.
  [[nodiscard]] std::pair<double, std::int64_t> waited_at_barriers() const {
    double us = 0;
    std::int64_t barriers = 0;
    for (std::size_t i = 0; i + 1 < path_.size(); ++i) {
      const PathStep& step = path_[i];
      const PathStep& next = path_[i + 1];
      if (step.kind != StepKind::kBarrier || next.kind == StepKind::kBarrier) continue;
      const Rank leader = next.message >= 0 ? message_of(next).opener : next.device;
      double done_us = 0;
      for (const ActivitySpan& span : program_of(step).activities) {
        if (span.device == leader) done_us = span.end_us;
      }
      us += program_of(step).time_us - done_us;
      ++barriers;
    }
    return {us, barriers};
  }

  // Adds the path's transfers by the port that bound them.
  void add_transfers(std::map<std::pair<PortKind, std::int32_t>, double>& us_of_port) const {
    for (const PathStep& step : path_) {
      if (step.kind != StepKind::kTransfer) continue;
      const NetworkPort port = message_of(step).bound_by;
      us_of_port[{port.kind, port.index}] += step.end_us - step.start_us;
    }
  }

  // Steps that start transfers, or in which a device waits until its host issues other work.
  [[nodiscard]] std::int64_t count_launching(bool for_host) const {
    return std::ranges::count_if(path_, [&](const PathStep& step) {
      if (step.kind != StepKind::kLaunch) return false;
      const ActivitySpan& span =
          program_of(step).activities[static_cast<std::size_t>(step.activity)];
      return (span.launch < 0) == for_host;
    });
  }

  // Messages of the path whose rate their flow's limit set.
  [[nodiscard]] std::int64_t bound_by_flows() const {
    return std::ranges::count_if(path_, [this](const PathStep& step) {
      return step.kind == StepKind::kTransfer && message_of(step).bound_by.kind == PortKind::kFlow;
    });
  }

 private:
  // The duration of every instruction and message of a simulation.
  class Durations {
   public:
    explicit Durations(const SimulatedDirection& simulated) {
      for (std::size_t p = 0; p < simulated.programs.size(); ++p) {
        for (const ActivitySpan& span : simulated.programs[p].activities) {
          spans_[{p, span.device.value, span.instruction, span.activity}] =
              span.end_us - span.start_us;
        }
        for (const MessageSpan& message : simulated.programs[p].messages) {
          messages_[{p, message.src.value, message.dst.value, message.src_launch}] = {
              message.flow_us - message.start_us, message.end_us - message.flow_us};
        }
      }
    }

    [[nodiscard]] double of(const DirectionSteps& steps, const PathStep& step) const {
      const auto program = static_cast<std::size_t>(step.program);
      if (step.message < 0) {
        const ActivitySpan& span =
            steps.program_of(step).activities[static_cast<std::size_t>(step.activity)];
        const auto found =
            spans_.find({program, span.device.value, span.instruction, span.activity});
        return found == spans_.end() ? 0 : found->second;  // spans without time are not recorded
      }
      const MessageSpan& message = steps.message_of(step);
      const auto& [latency_us, transfer_us] =
          messages_.at({program, message.src.value, message.dst.value, message.src_launch});
      return step.kind == StepKind::kLatency ? latency_us : transfer_us;
    }

   private:
    std::map<std::tuple<std::size_t, std::int32_t, std::int32_t, Activity>, double> spans_;
    std::map<std::tuple<std::size_t, std::int32_t, std::int32_t, std::int32_t>,
             std::pair<double, double>>
        messages_;
  };

  const SimulatedDirection& simulated_;
  std::vector<PathStep> path_;
};

class Causes {
 public:
  Causes(const Plan& plan, const Cluster& cluster, const Simulation& simulation)
      : plan_(plan), cluster_(cluster), simulation_(simulation) {
    for (const auto& [direction, simulated] : simulation.directions()) {
      directions_.emplace_back(*simulated);
    }
  }

  std::vector<TimeCause> measured() {
    add_imbalance();
    for (const Cause cause :
         {Cause::kTiles, Cause::kCalls, Cause::kMerging, Cause::kLaunches, Cause::kLatency}) {
      if (num_steps(cause) > 0) add_if_costly(measure(cause, {}));
    }
    for (const Cause cause : {Cause::kNodeLinks, Cause::kDeviceLinks}) add_links(cause);
    if (!cluster_.flow_gbytes_per_s.empty()) add_flows();
    if (has_host_times(cluster_.engine)) add_if_costly(measure(Cause::kHost, {}));
    if (cluster_.launches == LaunchOrder::kGrouped) add_launch_order();
    if (plan_.rounds.size() > 1) add_barriers();
    if (cluster_.transfer_sms > 0 || cluster_.sm_fraction > 0 ||
        cluster_.transfer_compute_us_per_mb > 0) {
      add_if_costly(measure(Cause::kStolenCompute, {}));
    }
    if (cluster_.compute_slots_per_node > 0) add_if_costly(measure(Cause::kSharedSlots, {}));
    std::ranges::stable_sort(causes_, std::greater<>(), &TimeCause::gain_us);
    return std::move(causes_);
  }

 private:
  [[nodiscard]] std::int64_t num_steps(Cause cause) const {
    std::int64_t steps = 0;
    for (const DirectionSteps& direction : directions_) {
      steps += cause == Cause::kLaunches || cause == Cause::kHost
                   ? direction.count_launching(cause == Cause::kHost)
                   : direction.count(kinds_of(cause));
    }
    return steps;
  }

  [[nodiscard]] TimeCause measure(Cause cause, const WhatIf& what_if) const {
    // If the number of instructions changes, steps cannot be compared one by one.
    const bool compares_steps = !what_if.without_barriers && !what_if.even_attention;
    const Simulation other =
        simulate_if(plan_, without(cause, cluster_), {.timeline = compares_steps}, what_if);
    TimeCause measured{.cause = cause,
                       .without_us = other.time_us(),
                       .gain_us = simulation_.time_us() - other.time_us(),
                       .steps = num_steps(cause)};
    if (!compares_steps) return measured;
    const auto others = other.directions();
    for (std::size_t d = 0; d < directions_.size(); ++d) {
      measured.path_us += directions_[d].shorter_us(*others[d].second, kinds_of(cause));
    }
    return measured;
  }

  void add_if_costly(TimeCause cause) {
    if (cause.gain_us > 0 && cause.gain_us >= kLeastGain * simulation_.time_us())
      causes_.push_back(cause);
  }

  // Adds the device that computes longest beyond the mean.
  void add_imbalance() {
    TimeCause found;
    double most_us = 0;
    for (const DirectionSteps& direction : directions_) {
      for (const SimulatedProgram& program : direction.simulated().programs) {
        const std::vector<double> attention_us =
            attention_of_devices(program, direction.simulated().devices.size());
        const double mean_us = mean_of(attention_us);
        const auto longest = std::ranges::max_element(attention_us);
        if (longest == attention_us.end() || *longest - mean_us <= most_us) continue;
        most_us = *longest - mean_us;
        found.ratio = *longest / mean_us;
        found.device = Rank{static_cast<std::int32_t>(longest - attention_us.begin())};
      }
    }
    if (most_us == 0) return;
    TimeCause cause = measure(Cause::kImbalance, {.even_attention = true});
    cause.device = found.device;
    cause.ratio = found.ratio;
    for (const DirectionSteps& direction : directions_) cause.path_us += direction.beyond_mean_us();
    add_if_costly(cause);
  }

  // Adds the port that most of the path's transfers go through, or all of its kind.
  void add_links(Cause kind) {
    std::map<std::pair<PortKind, std::int32_t>, double> us_of_port;
    for (const DirectionSteps& direction : directions_) direction.add_transfers(us_of_port);
    std::optional<NetworkPort> busiest;
    double most_us = 0;
    for (const auto& [key, us] : us_of_port) {
      const NetworkPort port{key.first, key.second};
      if (cause_of(port) != kind || us <= most_us) continue;
      busiest = port;
      most_us = us;
    }
    if (!busiest) return;
    std::vector<NetworkPort> all;
    const Ports ports(cluster_);
    for (std::int32_t p = 0; p < ports.num_ports(); ++p) {
      const NetworkPort port = ports.port(p);
      if (cause_of(port) == kind) all.push_back(port);
    }
    const TimeCause of_all = measure(kind, {.unlimited = all});
    const TimeCause of_one = measure(kind, {.unlimited = {*busiest}});
    const bool is_alone = of_one.gain_us >= kAloneOfAll * of_all.gain_us;
    TimeCause cause = is_alone ? of_one : of_all;
    cause.port = busiest;
    cause.bytes = bytes_through(*busiest);
    cause.num_ports = is_alone ? 1 : static_cast<std::int32_t>(all.size());
    add_if_costly(cause);
  }

  // Adds the limit of flows, with the messages of the path that it bound.
  void add_flows() {
    TimeCause cause = measure(Cause::kFlows, {});
    cause.steps = 0;
    for (const DirectionSteps& direction : directions_) cause.steps += direction.bound_by_flows();
    add_if_costly(cause);
  }

  [[nodiscard]] std::int64_t bytes_through(NetworkPort port) const {
    const Ports ports(cluster_);
    const std::int32_t number = ports.number(port);
    std::int64_t bytes = 0;
    for (const DirectionSteps& direction : directions_) {
      for (const SimulatedProgram& program : direction.simulated().programs) {
        for (const MessageSpan& message : program.messages) {
          const FlowPath path = ports.path_between(message.src, message.dst);
          const auto* const end = path.port.begin() + path.num_ports;
          if (std::find(path.port.begin(), end, number) != end) bytes += message.bytes;
        }
      }
    }
    return bytes;
  }

  void add_launch_order() {
    TimeCause cause = measure(Cause::kLaunchOrder, {});
    for (const DirectionSteps& direction : directions_) {
      const auto [us, messages] = direction.queued();
      cause.path_us += us;
      cause.steps += messages;
    }
    add_if_costly(cause);
  }

  void add_barriers() {
    TimeCause cause = measure(Cause::kBarriers, {.without_barriers = true});
    for (const DirectionSteps& direction : directions_) {
      const auto [us, barriers] = direction.waited_at_barriers();
      cause.path_us += us;
      cause.steps += barriers;
    }
    add_if_costly(cause);
  }

  const Plan& plan_;
  const Cluster& cluster_;
  const Simulation& simulation_;
  std::vector<DirectionSteps> directions_;
  std::vector<TimeCause> causes_;
};

}  // namespace

std::string_view to_string(Cause cause) {
  switch (cause) {
    case Cause::kImbalance:
      return "imbalance";
    case Cause::kTiles:
      return "tiles";
    case Cause::kCalls:
      return "calls";
    case Cause::kMerging:
      return "merging";
    case Cause::kLaunches:
      return "launches";
    case Cause::kLatency:
      return "latency";
    case Cause::kNodeLinks:
      return "node_links";
    case Cause::kDeviceLinks:
      return "device_links";
    case Cause::kFlows:
      return "flows";
    case Cause::kHost:
      return "host";
    case Cause::kLaunchOrder:
      return "launch_order";
    case Cause::kBarriers:
      return "barriers";
    case Cause::kStolenCompute:
      return "stolen_compute";
    case Cause::kSharedSlots:
      return "shared_slots";
  }
  fail_argument("cause: expected one of 14, found {}", static_cast<int>(cause));
}

std::vector<TimeCause> causes_of_time(const Plan& plan, const Cluster& cluster,
                                      const Simulation& simulation, std::size_t limit) {
  std::vector<TimeCause> causes = Causes(plan, cluster, simulation).measured();
  if (causes.size() > limit) causes.resize(limit);
  return causes;
}

}  // namespace contextile
