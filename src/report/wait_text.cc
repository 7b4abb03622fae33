#include "report/wait_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <variant>
#include <vector>

#include "base/check.h"
#include "report/html/text.h"

namespace contextile {
namespace {

constexpr std::size_t kMostNamed = 4;  // devices or runs of blocks named one by one

std::int64_t key_of(Rank rank, std::int32_t launch) {
  return (std::int64_t{rank.value} << 32) | static_cast<std::uint32_t>(launch);
}

std::string joined(const std::vector<std::string>& parts, std::string_view last_word) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 == parts.size() ? fmt::format(" {} ", last_word) : ", ";
    text += parts[i];
  }
  return text;
}

// "8-11, 14"; the first few if there are many runs.
std::string runs_text(const std::set<std::int32_t>& numbers) {
  std::vector<std::string> runs;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const std::int32_t first = *it;
    std::int32_t last = first;
    while (++it != numbers.end() && *it == last + 1) last = *it;
    if (runs.size() == kMostNamed) {
      runs.emplace_back("…");
      break;
    }
    runs.push_back(first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last));
  }
  return fmt::format("{}", fmt::join(runs, ", "));
}

std::string_view doing(Activity activity) {
  switch (activity) {
    case Activity::kAttention:
      return "computing attention";
    case Activity::kMerge:
      return "merging";
    case Activity::kLaunch:
      return "launching";
    case Activity::kExposed:
      break;
  }
  return "waiting itself";
}

}  // namespace

std::string port_text(const Cluster& cluster, NetworkPort port) {
  if (port.kind == PortKind::kFlow) return fmt::format("device {}'s flow, out", port.index);
  const bool is_out = port.kind == PortKind::kDeviceOut || port.kind == PortKind::kNicOut;
  const std::string_view way = is_out ? "out" : "in";
  if (port.kind == PortKind::kDeviceOut || port.kind == PortKind::kDeviceIn) {
    return fmt::format("device {}'s port, {}", port.index, way);
  }
  const std::int32_t node = port.index / cluster.nics_per_node;
  if (cluster.nics_per_node == 1) return fmt::format("node {}'s uplink, {}", node, way);
  return fmt::format("node {}'s NIC {}, {}", node, port.index % cluster.nics_per_node, way);
}

WaitTexts::WaitTexts(const Plan& plan, const Cluster& cluster, Direction direction,
                     const SimulatedProgram& simulated)
    : cluster_(cluster), simulated_(simulated) {
  const PlanRound& round = plan.rounds[static_cast<std::size_t>(simulated.round)];
  for (std::int32_t r = 0; r < plan.num_devices(); ++r) {
    const ProgramPair& programs =
        round.devices[Rank{r}.index()].programs[static_cast<std::size_t>(simulated.mask)];
    for (const Instruction& instruction : programs.of(direction)->instructions) {
      if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
        launches_[key_of(Rank{r}, launch->id)] = launch;
      }
    }
  }
}

const LaunchOp& WaitTexts::launch_of(Rank rank, std::int32_t id) const {
  const auto found = launches_.find(key_of(rank, id));
  CONTEXTILE_CHECK(found != launches_.end(),
                   "wait: rank {}: expected launch {} in the plan, found none", rank.value, id);
  return *found->second;
}

const MessageSpan& WaitTexts::message_at(std::int32_t m) const {
  return simulated_.messages[static_cast<std::size_t>(m)];
}

std::string WaitTexts::units(const MessageSpan& message) const {
  std::array<std::set<std::int32_t>, kNumKinds> blocks;
  std::array<std::int64_t, kNumKinds> count{};
  for (const TransferEnd& send : launch_of(message.src, message.src_launch).sends) {
    if (send.peer != message.dst) continue;
    blocks[static_cast<std::size_t>(send.kind)].insert(send.block.value);
    ++count[static_cast<std::size_t>(send.kind)];
  }
  std::vector<std::string> parts;
  for (std::size_t k = 0; k < blocks.size(); ++k) {
    if (count[k] == 0) continue;
    parts.push_back(fmt::format("{} {} of block{} {}", count[k], to_string(static_cast<Kind>(k)),
                                blocks[k].size() == 1 ? "" : "s", runs_text(blocks[k])));
  }
  return joined(parts, "and");
}

std::int64_t WaitTexts::kinds(const MessageSpan& message) const {
  std::int64_t bits = 0;
  for (const TransferEnd& send : launch_of(message.src, message.src_launch).sends) {
    if (send.peer == message.dst) bits |= std::int64_t{1} << static_cast<int>(send.kind);
  }
  return bits;
}

std::string WaitTexts::link(const WaitReason& reason) const {
  const MessageSpan& message = message_at(reason.message);
  std::string text = port_text(cluster_, message.bound_by);
  if (reason.sharing.empty()) return text;
  std::set<std::int32_t> senders;
  for (const std::int32_t m : reason.sharing) senders.insert(message_at(m).src.value);
  return text + fmt::format(", shared with {} of device{} {}",
                            counted(static_cast<std::int64_t>(reason.sharing.size()), "message"),
                            senders.size() == 1 ? "" : "s", runs_text(senders));
}

// The origin: the longest of the steps that led to the end of the wait.
std::string WaitTexts::root(const WaitReason& reason) const {
  const PathStep& step = reason.root();
  const std::string time = time_text(step.end_us - step.start_us);
  if (step.message < 0) {
    return fmt::format("device {}, {} for {}", step.device.value, to_string(step.kind), time);
  }
  const MessageSpan& message = message_at(step.message);
  return fmt::format("{} from device {} to {}, {} for {}", units(message), message.src.value,
                     message.dst.value, step.kind == StepKind::kLatency ? "latency" : "moving",
                     time);
}

std::string WaitTexts::peer_was(const WaitReason& reason) const {
  std::vector<std::string> parts;
  for (std::size_t a = 0; a < reason.peer_was_us.size(); ++a) {
    if (reason.peer_was_us[a] <= 0) continue;
    parts.push_back(fmt::format("{} for {}", doing(static_cast<Activity>(a)),
                                time_text(reason.peer_was_us[a])));
  }
  std::string text = joined(parts, "and");
  if (reason.peer_was_us[static_cast<std::size_t>(Activity::kExposed)] > 0) {
    text += fmt::format(" (longest before it: {})", root(reason));
  }
  std::vector<std::string> moved;
  if (reason.queued_us > 0) {
    moved.push_back(
        fmt::format("queued behind earlier launches for {}", time_text(reason.queued_us)));
  }
  if (reason.latency_us > 0) {
    moved.push_back(fmt::format("had {} of latency", time_text(reason.latency_us)));
  }
  if (reason.transfer_us > 0) {
    moved.push_back(fmt::format("moved for {}", time_text(reason.transfer_us)));
  }
  if (moved.empty()) return text;
  return text + (text.empty() ? "ready: the message " : "; then the message ") +
         joined(moved, "and");
}

WaitText WaitTexts::of(const WaitReason& reason) const {
  const MessageSpan& message = message_at(reason.message);
  const ActivitySpan& wait = simulated_.activities[static_cast<std::size_t>(reason.activity)];
  return {fmt::format("launch {}: {}, {}", wait.launch, units(message),
                      bytes_text(static_cast<double>(message.bytes))),
          link(reason),
          fmt::format("device {}, the {}", reason.peer.value,
                      reason.peer == message.src ? "sender" : "receiver"),
          peer_was(reason)};
}

}  // namespace contextile
