#include "labs/network/network_program.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <variant>

#include "base/check.h"
#include "contextile/simulate.h"

namespace contextile {
namespace {

// One end of a message: the peer, and what moves. Peers are ordered as first named.
struct PeerBytes {
  Rank peer;
  std::int64_t bytes = 0;
};

std::vector<PeerBytes> bytes_by_peer(const Plan& plan, const PlanRound& round,
                                     const std::vector<TransferEnd>& transfers) {
  std::vector<PeerBytes> ends;
  std::unordered_map<std::int32_t, std::size_t> end_of_peer;
  for (const TransferEnd& transfer : transfers) {
    const auto [place, is_new] = end_of_peer.try_emplace(transfer.peer.value, ends.size());
    if (is_new) ends.push_back({transfer.peer});
    const std::int64_t bytes =
        unit_bytes(transfer.kind, round.blocks.num_tokens(transfer.block), plan.shape,
                   round.groups_of(transfer.block), transfer.wire);
    ends[place->second].bytes +=
        static_cast<std::int64_t>(static_cast<double>(bytes) * plan.padded_bytes_factor);
  }
  return ends;
}

// Ends that wait for the other one, by sender and receiver, in program order.
struct UnmatchedEnd {
  std::int32_t launch = 0;
  std::int64_t bytes = 0;
};
using UnmatchedEnds = std::map<std::pair<Rank, Rank>, std::vector<UnmatchedEnd>>;

class ProgramReader {
 public:
  ProgramReader(const Plan& plan, const PlanRound& round) : plan_(plan), round_(round) {}

  NetworkProgram read(std::size_t mask, Direction direction) {
    NetworkProgram program;
    for (std::size_t d = 0; d < round_.devices.size(); ++d) {
      program.devices.push_back(
          steps_of(Rank(static_cast<std::int32_t>(d)),
                   round_.devices[d].programs[mask].of(direction)->instructions));
    }
    match(program.messages);
    return program;
  }

 private:
  std::vector<NetworkStep> steps_of(Rank rank, const std::vector<Instruction>& instructions) {
    std::vector<NetworkStep> steps;
    std::unordered_map<std::int32_t, std::int32_t> launch_of;  // by id
    std::int32_t num_launches = 0;
    for (const Instruction& instruction : instructions) {
      NetworkStep& step = steps.emplace_back();
      if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
        step.kind = NetworkStepKind::kLaunch;
        step.launch = launch_of[launch->id] = num_launches++;
        step.num_messages = add_ends(rank, step.launch, *launch);
      } else if (const auto* wait = std::get_if<WaitOp>(&instruction)) {
        step.kind = NetworkStepKind::kWait;
        const auto found = launch_of.find(wait->id);
        if (found == launch_of.end()) {
          throw InvalidPlan(
              fmt::format("network: expected launch {} of rank {} before its wait, found none",
                          wait->id, rank.value));
        }
        step.launch = found->second;
      } else if (!std::holds_alternative<AttentionOp>(instruction)) {
        step.kind = NetworkStepKind::kMerge;
      }
    }
    return steps;
  }

  std::int32_t add_ends(Rank rank, std::int32_t launch, const LaunchOp& op) {
    const std::vector<PeerBytes> sends = bytes_by_peer(plan_, round_, op.sends);
    const std::vector<PeerBytes> receives = bytes_by_peer(plan_, round_, op.recvs);
    for (const PeerBytes& end : sends) sent_[{rank, end.peer}].push_back({launch, end.bytes});
    for (const PeerBytes& end : receives) {
      received_[{end.peer, rank}].push_back({launch, end.bytes});
    }
    return static_cast<std::int32_t>(sends.size() + receives.size());
  }

  void match(std::vector<NetworkMessage>& messages) {
    for (const auto& [pair, sent] : sent_) {
      const std::vector<UnmatchedEnd>& received = received_[pair];
      const bool fits =
          std::ranges::equal(sent, received, {}, &UnmatchedEnd::bytes, &UnmatchedEnd::bytes);
      if (!fits) refuse(pair.first, pair.second, sent.size(), received.size());
      for (std::size_t k = 0; k < sent.size(); ++k) {
        messages.push_back(
            {pair.first, pair.second, sent[k].launch, received[k].launch, sent[k].bytes});
      }
    }
    for (const auto& [pair, received] : received_) {
      if (!received.empty() && !sent_.contains(pair)) {
        refuse(pair.first, pair.second, 0, received.size());
      }
    }
  }

  [[noreturn]] static void refuse(Rank src, Rank dst, std::size_t sent, std::size_t received) {
    throw InvalidPlan(
        fmt::format("network: expected rank {} to receive what rank {} sends, found {} messages "
                    "sent and {} expected, or other sizes",
                    dst.value, src.value, sent, received));
  }

  const Plan& plan_;
  const PlanRound& round_;
  UnmatchedEnds sent_;
  UnmatchedEnds received_;
};

double host_us(const NetworkStep& step, const EngineCosts& engine) {
  switch (step.kind) {
    case NetworkStepKind::kAttention:
      return engine.host_stage_us;
    case NetworkStepKind::kMerge:
      return engine.host_merge_us;
    case NetworkStepKind::kLaunch:
      return engine.host_launch_us + engine.host_message_us * step.num_messages;
    case NetworkStepKind::kWait:
      return 0;
  }
  return 0;
}

// The cluster with a host that takes no time: spans of a timeline are then the steps' own
// durations.
Cluster without_host(Cluster cluster) {
  cluster.engine = cluster.engine.without_host();
  return cluster;
}

// Takes durations from the spans of one simulated program. A step may have several spans, attention
// and its merging, or none if it takes no time.
void take_durations(const SimulatedProgram& simulated, NetworkProgram& program) {
  for (std::vector<NetworkStep>& steps : program.devices) {
    for (NetworkStep& step : steps) step.duration_us = 0;
  }
  for (const ActivitySpan& span : simulated.activities) {
    if (span.activity == Activity::kExposed) continue;
    program.devices[span.device.index()][static_cast<std::size_t>(span.instruction)].duration_us +=
        span.end_us - span.start_us;
  }
}

}  // namespace

NetworkPrograms::NetworkPrograms(const Plan& plan) {
  check_whole(plan, "network");
  for (const Direction direction : kDirections) {
    for (const PlanRound& round : plan.rounds) {
      for (std::size_t m = 0; m < round.masks.size(); ++m) {
        if (!round.has_direction(m, direction)) continue;
        programs_.push_back(ProgramReader(plan, round).read(m, direction));
        programs_.back().call =
            static_cast<std::int32_t>(2 * m) + (direction == Direction::kForward ? 0 : 1);
      }
    }
  }
}

double NetworkPrograms::set_times(const Plan& plan, const Cluster& cluster) {
  check_network_cluster(cluster);
  const Cluster quick = without_host(cluster);
  const Simulation simulation = simulate(plan, quick, {.timeline = true});
  std::size_t next = 0;
  for (const auto& [direction, simulated] : simulation.directions()) {
    for (const SimulatedProgram& program : simulated->programs) {
      take_durations(program, programs_[next++]);
    }
  }
  std::set<std::int32_t> begun;
  for (NetworkProgram& program : programs_) {
    const bool begins_call = begun.insert(program.call).second;
    for (std::vector<NetworkStep>& steps : program.devices) {
      for (NetworkStep& step : steps) step.host_us = host_us(step, cluster.engine);
      if (!begins_call || steps.empty()) continue;
      steps.front().host_us += cluster.engine.host_begin_us(plan.sequences.size());
    }
  }
  return cluster.engine == quick.engine ? simulation.time_us() : simulate(plan, cluster).time_us();
}

void check_network_cluster(const Cluster& cluster) {
  const std::pair<const char*, double> constants[] = {
      {"sm_fraction", cluster.sm_fraction},
      {"transfer_compute_us_per_mb", cluster.transfer_compute_us_per_mb},
      {"compute_slots_per_node", cluster.compute_slots_per_node}};
  for (const auto& [name, value] : constants) {
    if (value == 0) continue;
    fail_argument(
        "network: cluster {}: expected {} 0, because transfers change no compute in this model, "
        "found {}",
        cluster.name, name, value);
  }
}

}  // namespace contextile
