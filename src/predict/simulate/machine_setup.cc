// Set-up of a machine: the launches of each device, and which messages they move.
#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "predict/simulate/event_machine.h"

namespace contextile {

// Makes one group for each launch and links waits to theirs.
void Machine::number_groups() {
  for (std::size_t d = 0; d < programs_.size(); ++d) {
    std::unordered_map<std::int32_t, std::int32_t> group_of;  // by launch id
    for (TimedStep& step : programs_[d].steps) {
      if (step.launch_id < 0) continue;
      if (step.is_wait) {
        const auto it = group_of.find(step.launch_id);
        if (it == group_of.end()) {
          throw InvalidPlan(
              fmt::format("{}: rank {} waits for launch {}, which comes later if ever", where_, d,
                          step.launch_id));
        }
        step.group = it->second;
        continue;
      }
      step.group = static_cast<std::int32_t>(groups_.size());
      group_of[step.launch_id] = step.group;
      devices_[d].groups.push_back(step.group);
      groups_.push_back(
          {.device = static_cast<std::int32_t>(d), .launch_id = step.launch_id, .messages = {}});
    }
  }
}

// Makes one message for each send; those of a pair of devices share a stream. Returns the first
// port behind those of flows.
std::int32_t Machine::number_messages() {
  const bool has_flow_limit = cluster_.flow_limit_gbytes_per_s().has_value();
  std::int32_t flow_port = ports_.num_ports();  // of the next flow, as for_each_flow meets them
  for (std::size_t d = 0; d < programs_.size(); ++d) {
    const Rank device(static_cast<std::int32_t>(d));
    std::vector<std::int32_t> stream_to(programs_.size(), -1);
    for (const TimedStep& step : programs_[d].steps) {
      for (const MessageEnd& send : step.sends) {
        std::int32_t& stream = stream_to[send.peer.index()];
        if (stream < 0) {
          FlowPath path = ports_.path_between(device, send.peer);
          if (has_flow_limit && !cluster_.same_node(device, send.peer)) path.cross(flow_port++);
          stream = network_.add_stream(path);
          streams_.push_back({device.value, send.peer.value});
        }
        groups_[static_cast<std::size_t>(step.group)].messages.push_back(
            static_cast<std::int32_t>(messages_.size()));
        messages_.push_back({.src = device.value,
                             .dst = send.peer.value,
                             .bytes = send.bytes,
                             .src_group = step.group,
                             .stream = stream});
        (cluster_.same_node(device, send.peer) ? intra_bytes_ : inter_bytes_) += send.bytes;
      }
    }
  }
  return flow_port;
}

// `limit_port` is the first of the ports that limit the flows.
void Machine::number_collective(const CollectiveLoad& collective, std::int32_t limit_port) {
  for_each_collective_flow(cluster_, collective, [&](Rank src, Rank dst, double gbytes_per_s) {
    FlowPath path = ports_.path_between(src, dst);
    path.cross(limit_port++);
    streams_.push_back({src.value, dst.value});
    collective_flows_.push_back(
        {network_.add_stream(path), 1e3 * gbytes_per_s * collective.alone_us});
  });
}

// Matches the k-th message from one device to another with the k-th that the other expects.
void Machine::match_messages() {
  std::vector<std::vector<std::int32_t>> sent_to(programs_.size());  // by sender, in program order
  for (std::size_t m = 0; m < messages_.size(); ++m) {
    sent_to[static_cast<std::size_t>(messages_[m].dst)].push_back(static_cast<std::int32_t>(m));
  }
  std::vector<std::size_t> next(programs_.size());  // message of each sender, in sent_to
  for (std::size_t d = 0; d < programs_.size(); ++d) {
    const std::vector<std::int32_t>& sent = sent_to[d];
    std::fill(next.begin(), next.end(), sent.size());
    for (std::size_t i = sent.size(); i-- > 0;) {
      next[static_cast<std::size_t>(messages_[static_cast<std::size_t>(sent[i])].src)] = i;
    }
    for (const TimedStep& step : programs_[d].steps) {
      for (const MessageEnd& receive : step.receives) {
        const std::size_t i = next[receive.peer.index()]++;
        if (i >= sent.size() ||
            messages_[static_cast<std::size_t>(sent[i])].src != receive.peer.value) {
          throw InvalidPlan(
              fmt::format("{}: rank {} receives more messages of rank {} than that one sends",
                          where_, d, receive.peer.value));
        }
        Message& message = messages_[static_cast<std::size_t>(sent[i])];
        check_bytes(message, receive.bytes);
        message.dst_group = step.group;
        groups_[static_cast<std::size_t>(step.group)].messages.push_back(sent[i]);
      }
    }
  }
  for (const Message& message : messages_) {
    if (message.dst_group < 0) {
      throw InvalidPlan(fmt::format("{}: rank {} sends a message to rank {} that it never receives",
                                    where_, message.src, message.dst));
    }
  }
  for (Group& group : groups_) {
    group.messages_left = static_cast<std::int32_t>(group.messages.size());
  }
}

void Machine::check_bytes(const Message& message, std::int64_t received_bytes) const {
  if (message.bytes != received_bytes) {
    throw InvalidPlan(fmt::format("{}: rank {} sends {} bytes to rank {}, which expects {}", where_,
                                  message.src, message.bytes, message.dst, received_bytes));
  }
}

}  // namespace contextile
