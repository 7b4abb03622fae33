#include "labs/network/chunk_machine.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <queue>
#include <utility>

#include "base/check.h"

namespace contextile {
namespace {

class ChunkMachine {
 public:
  ChunkMachine(const NetworkProgram& program, const Cluster& cluster, const ChunkOptions& options)
      : program_(program), cluster_(cluster), network_(cluster, options) {
    devices_.resize(program.devices.size());
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      for (const NetworkStep& step : program.devices[d]) {
        if (step.kind == NetworkStepKind::kLaunch) devices_[d].launches.emplace_back();
      }
    }
    for (std::size_t m = 0; m < program.messages.size(); ++m) {
      const NetworkMessage& message = program.messages[m];
      network_.add(message.src, message.dst, message.bytes);
      for (Launch* launch : ends_of(message)) {
        launch->messages.push_back(static_cast<std::int32_t>(m));
        ++launch->left;
      }
    }
    ends_closed_.assign(program.messages.size(), 2);
  }

  // Runs to the end. `hosts_us` is when the host of each device is free to issue: before, from the
  // start on, and afterwards, from the end on.
  double run(std::vector<double>& hosts_us) {
    hosts_us.resize(devices_.size());
    for (std::size_t d = 0; d < devices_.size(); ++d) devices_[d].issued_us = hosts_us[d];
    for (std::size_t d = 0; d < devices_.size(); ++d) proceed(d);
    while (true) {
      const double own_us =
          events_.empty() ? std::numeric_limits<double>::infinity() : events_.top().time_us;
      now_us_ = std::min(own_us, network_.next_us());
      if (now_us_ == std::numeric_limits<double>::infinity()) break;
      if (network_.next_us() <= now_us_) {
        for (const std::int32_t message : network_.advance()) end_message(message);
      }
      while (!events_.empty() && events_.top().time_us <= now_us_) {
        const Event event = events_.top();
        events_.pop();
        handle(event);
      }
    }
    double end_us = 0;
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      check_ended(d);
      end_us = std::max(end_us, devices_[d].end_us);
    }
    for (std::size_t d = 0; d < devices_.size(); ++d) hosts_us[d] = devices_[d].issued_us - end_us;
    return end_us;
  }

 private:
  struct Launch {
    std::vector<std::int32_t> messages;
    std::int32_t left = 0;  // messages that have not arrived
    bool issued = false;
    bool open = false;  // its messages may move, as far as this device is concerned
  };
  struct Device {
    std::size_t step = 0;
    double issued_us = 0;  // when the host has issued the step
    std::vector<Launch> launches;
    std::size_t next_launch = 0;  // grouped: the first one that is not open
    bool waiting = false;
    double end_us = 0;
  };
  enum class EventKind : std::uint8_t { kStepEnds, kLatencyEnds };
  struct Event {
    double time_us = 0;
    std::int64_t order = 0;  // of events at one time, ascending
    EventKind kind = EventKind::kStepEnds;
    std::size_t index = 0;  // device or message
    bool operator>(const Event& other) const {
      if (time_us != other.time_us) return time_us > other.time_us;
      return order != other.order ? order > other.order : index > other.index;
    }
  };

  std::pair<Launch*, Launch*> pair_of(const NetworkMessage& message) {
    return {&devices_[message.src.index()].launches[static_cast<std::size_t>(message.src_launch)],
            &devices_[message.dst.index()].launches[static_cast<std::size_t>(message.dst_launch)]};
  }
  std::vector<Launch*> ends_of(const NetworkMessage& message) {
    const auto [sent, received] = pair_of(message);
    return {sent, received};
  }

  void push(double time_us, EventKind kind, std::size_t index) {
    events_.push({time_us, next_order_++, kind, index});
  }

  void proceed(std::size_t d) {
    Device& device = devices_[d];
    const std::vector<NetworkStep>& steps = program_.devices[d];
    for (; device.step < steps.size(); ++device.step) {
      const NetworkStep& step = steps[device.step];
      device.issued_us += step.host_us;
      if (step.kind != NetworkStepKind::kWait) {
        push(std::max(now_us_, device.issued_us) + step.duration_us, EventKind::kStepEnds, d);
        return;
      }
      const Launch& launch = device.launches[static_cast<std::size_t>(step.launch)];
      if (!launch.open || launch.left > 0) {
        device.waiting = true;
        return;
      }
    }
    device.end_us = now_us_;
  }

  void handle(const Event& event) {
    if (event.kind == EventKind::kLatencyEnds) {
      network_.start(static_cast<std::int32_t>(event.index), now_us_);
      return;
    }
    Device& device = devices_[event.index];
    const NetworkStep& step = program_.devices[event.index][device.step];
    ++device.step;
    if (step.kind == NetworkStepKind::kLaunch) {
      device.launches[static_cast<std::size_t>(step.launch)].issued = true;
      open_launches(event.index);
    }
    proceed(event.index);
  }

  // Opens the launches of a device whose turn has come.
  void open_launches(std::size_t d) {
    Device& device = devices_[d];
    const bool grouped = cluster_.launches == LaunchOrder::kGrouped;
    while (device.next_launch < device.launches.size()) {
      Launch& launch = device.launches[device.next_launch];
      if (!launch.issued) return;
      if (grouped && device.next_launch > 0 && device.launches[device.next_launch - 1].left > 0) {
        return;
      }
      ++device.next_launch;
      launch.open = true;
      for (const std::int32_t message : launch.messages) open_end(message);
    }
  }

  // Messages that start together do so by the distance of nodes, then of devices in their nodes,
  // in which NCCL orders the peers of a group. In the order of ranks, all would send to one device
  // first.
  [[nodiscard]] std::int64_t turn_of(const NetworkMessage& message) const {
    const std::int32_t nodes = cluster_.nodes;
    const std::int32_t devices = cluster_.devices_per_node;
    const std::int32_t away = cluster_.node_of(message.dst) - cluster_.node_of(message.src);
    const std::int32_t aside = (message.dst.value - message.src.value) % devices;
    return (away + nodes) % nodes * devices + (aside + devices) % devices - cluster_.num_devices();
  }

  // When both ends are open, the latency begins.
  void open_end(std::int32_t m) {
    if (--ends_closed_[static_cast<std::size_t>(m)] > 0) return;
    const NetworkMessage& message = program_.messages[static_cast<std::size_t>(m)];
    const double latency_us = cluster_.same_node(message.src, message.dst)
                                  ? cluster_.intra_latency_us
                                  : cluster_.inter_latency_us;
    events_.push({now_us_ + latency_us, turn_of(message), EventKind::kLatencyEnds,
                  static_cast<std::size_t>(m)});
  }

  void end_message(std::int32_t m) {
    const NetworkMessage& message = program_.messages[static_cast<std::size_t>(m)];
    const auto [sent, received] = pair_of(message);
    if (--sent->left == 0) end_launch(message.src.index());
    if (--received->left == 0) end_launch(message.dst.index());
  }

  // A launch of the device is over. That may open another one, which may have nothing to move.
  void end_launch(std::size_t d) {
    Device& device = devices_[d];
    open_launches(d);
    if (!device.waiting) return;
    const NetworkStep& step = program_.devices[d][device.step];
    const Launch& awaited = device.launches[static_cast<std::size_t>(step.launch)];
    if (!awaited.open || awaited.left > 0) return;
    device.waiting = false;
    ++device.step;
    proceed(d);
  }

  void check_ended(std::size_t d) const {
    const Device& device = devices_[d];
    if (device.step == program_.devices[d].size()) return;
    throw InvalidPlan(
        fmt::format("network: rank {} waits forever at instruction {}", d, device.step));
  }

  const NetworkProgram& program_;
  const Cluster& cluster_;
  ChunkNetwork network_;
  std::vector<Device> devices_;
  std::vector<std::int32_t> ends_closed_;  // by message
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::int64_t next_order_ = 0;
  double now_us_ = 0;
};

}  // namespace

double chunk_time_us(const NetworkProgram& program, const Cluster& cluster,
                     const ChunkOptions& options) {
  return chunk_time_us(std::vector{program}, cluster, options);
}

double chunk_time_us(const std::vector<NetworkProgram>& programs, const Cluster& cluster,
                     const ChunkOptions& options) {
  check_cluster(cluster);
  check_network_cluster(cluster);
  double time_us = 0;
  std::map<std::int32_t, std::vector<double>> hosts_us;  // by call
  for (const NetworkProgram& program : programs) {
    time_us += ChunkMachine(program, cluster, options).run(hosts_us[program.call]);
  }
  return time_us;
}

}  // namespace contextile
