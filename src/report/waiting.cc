#include "report/waiting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace contextile {
namespace {

// Indices of WaitingTimes::for_us_.
enum Reason : std::size_t { kNodes, kDevices, kFlows, kLatencies, kOthers };

Reason reason_of(PortKind port) {
  switch (port) {
    case PortKind::kNicOut:
    case PortKind::kNicIn:
      return kNodes;
    case PortKind::kFlow:
      return kFlows;
    case PortKind::kDeviceOut:
    case PortKind::kDeviceIn:
      break;
  }
  return kDevices;
}

Reason reason_of(const PathStep& step, const SimulatedProgram& program) {
  if (step.kind == StepKind::kLatency) return kLatencies;
  if (step.kind != StepKind::kTransfer) return kOthers;
  return reason_of(program.messages[static_cast<std::size_t>(step.message)].bound_by.kind);
}

std::string reason_text(Reason reason, const Cluster& cluster) {
  switch (reason) {
    case kNodes:
      return cluster.nics_per_node == 1
                 ? "one NIC per node"
                 : fmt::format("the {} NICs of a node", cluster.nics_per_node);
    case kDevices:
      return "the links inside nodes";
    case kFlows:
      return "the rate of one flow between nodes";
    case kLatencies:
      return "the latency of messages";
    case kOthers:
      break;
  }
  return "devices that still compute";
}

}  // namespace

void WaitingTimes::add(const Simulation& simulation) {
  time_us_ += simulation.time_us();
  for (const auto& [direction, simulated] : simulation.directions()) {
    exposed_us_ += simulated->exposed_us;
    for (const SimulatedProgram& program : simulated->programs) {
      for (const WaitReason& reason : wait_reasons(program, cluster_)) {
        // The steps of a chain add up to the wait.
        for (const PathStep& step : reason.chain) {
          for_us_[reason_of(step, program)] += step.end_us - step.start_us;
        }
      }
    }
  }
}

Waiting WaitingTimes::result() const {
  if (time_us_ <= 0 || exposed_us_ <= 0) return {};
  const auto most = std::ranges::max_element(for_us_);
  const auto reason = static_cast<Reason>(most - for_us_.begin());
  return {exposed_us_ / time_us_, *most > 0 ? reason_text(reason, cluster_) : ""};
}

Waiting waiting_of(const Cluster& cluster, const Simulation& simulation) {
  WaitingTimes times(cluster);
  times.add(simulation);
  return times.result();
}

std::string waiting_text(const Waiting& waiting) {
  if (waiting.share < 0.005 || waiting.mostly.empty()) return "hardly waits";
  return fmt::format("waits {:.0f}% of its attention time, mostly for {}", 100 * waiting.share,
                     waiting.mostly);
}

}  // namespace contextile
