#include "predict/simulate/event_machine.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"

namespace contextile {
namespace {

// Rates are exact up to this many devices; beyond, computing shares at every change would be
// quadratic.
constexpr std::int32_t kExactDevices = 64;
// With more devices, the next share-out is due 1 µs after the last one for every kFlowsPerUs flows.
// Its cost grows with the flows, and the share that an ended flow leaves unused shrinks with them.
constexpr double kFlowsPerUs = 512;

// The rate of a port without a limit, bytes per µs. Not infinite, because shares are differences.
constexpr double kNoLimit = 1e18;

// Calls `use` for every pair of devices of two nodes between which messages go, by sender and then
// in the order of its program.
template <typename Use>
void for_each_flow(const Cluster& cluster, const std::vector<TimedProgram>& programs,
                   const Use& use) {
  for (std::size_t d = 0; d < programs.size(); ++d) {
    const Rank device(static_cast<std::int32_t>(d));
    std::vector<bool> seen(programs.size());
    for (const TimedStep& step : programs[d].steps) {
      for (const MessageEnd& send : step.sends) {
        if (seen[send.peer.index()] || cluster.same_node(device, send.peer)) continue;
        seen[send.peer.index()] = true;
        use(device, send.peer);
      }
    }
  }
}

// Ports of the cluster, then one for every flow if these have a limit, then those that keep the
// flows of a collective at its own rate.
std::vector<double> capacities(const Cluster& cluster, const Ports& ports,
                               const std::vector<TimedProgram>& programs,
                               const std::vector<NetworkPort>& unlimited,
                               const CollectiveLoad& collective) {
  std::vector<double> capacity = ports.capacities();
  if (const std::optional<double> limit = cluster.flow_limit_gbytes_per_s()) {
    for_each_flow(cluster, programs, [&](Rank, Rank) { capacity.push_back(1e3 * *limit); });
  }
  for_each_collective_flow(cluster, collective, [&](Rank, Rank, double gbytes_per_s) {
    capacity.push_back(1e3 * gbytes_per_s);
  });
  for (const NetworkPort& port : unlimited) {
    capacity[static_cast<std::size_t>(ports.number(port))] = kNoLimit;
  }
  return capacity;
}

// A device that moves data computes at least at this share of its speed: the system is fair to it.
constexpr double kLeastShare = 0.1;
constexpr double kMbPerByte = 1e-6;

}  // namespace

Machine::Machine(const Cluster& cluster, std::vector<TimedProgram> programs, std::string where,
                 const SimulateOptions& options, const std::vector<NetworkPort>& unlimited,
                 const CollectiveLoad& collective)
    : cluster_(cluster),
      ports_(cluster),
      programs_(std::move(programs)),
      where_(std::move(where)),
      timeline_(options.timeline),
      resolution_us_(options.resolution_us),
      network_(capacities(cluster, ports_, programs_, unlimited, collective)),
      devices_(programs_.size()),
      computing_(static_cast<std::size_t>(cluster.nodes)),
      times_(programs_.size()),
      progress_(options.progress) {
  if (timeline_) network_.track_ports();
  number_groups();
  const std::int32_t limit_port = number_messages();
  match_messages();
  number_collective(collective, limit_port);
}

// ----------------------------------------------------------------------------------- devices

const TimedStep& Machine::step_of(std::int32_t d) const {
  return programs_[static_cast<std::size_t>(d)].steps[devices_[static_cast<std::size_t>(d)].step];
}

bool Machine::finished(std::int32_t d) const {
  return devices_[static_cast<std::size_t>(d)].step ==
         programs_[static_cast<std::size_t>(d)].steps.size();
}

void Machine::push(double time_us, EventType type, std::int32_t index, std::int32_t version) {
  events_.push({time_us, next_order_++, type, index, version});
}

// Begins the device's next step; waits that are over take no time.
void Machine::proceed(std::int32_t d) {
  Device& device = devices_[static_cast<std::size_t>(d)];
  while (!finished(d)) {
    const TimedStep& step = step_of(d);
    device.step_start_us = now_;
    device.issued_us += step.host_us;
    if (!step.is_wait) {
      if (device.issued_us > now_) {
        push(device.issued_us, EventType::kIssued, d);
      } else {
        start_compute(d, step.duration_us);
      }
      return;
    }
    if (!groups_[static_cast<std::size_t>(step.group)].done) {
      // end_message_at ends this wait when the last message of its launch has arrived.
      device.waiting = true;
      return;
    }
    ++device.step;
  }
  device.end_us = now_;
}

// The device has waited for its host since the step before. The span of a launch includes that.
void Machine::begin_issued_step(std::int32_t d) {
  const TimedStep& step = step_of(d);
  if (step.activity != Activity::kLaunch) {
    record(d, Activity::kLaunch, -1);
    devices_[static_cast<std::size_t>(d)].step_start_us = now_;
  }
  start_compute(d, step.duration_us);
}

// Attention is over, and its results are merged apart from it.
void Machine::begin_merge(std::int32_t d) {
  Device& device = devices_[static_cast<std::size_t>(d)];
  record(d, Activity::kAttention, -1);
  device.step_start_us = now_;
  device.merging = true;
  start_compute(d, step_of(d).merge_us);
}

void Machine::set_hosts(const std::vector<double>& issued_us) {
  for (std::size_t d = 0; d < issued_us.size(); ++d) devices_[d].issued_us = issued_us[d];
}

std::vector<double> Machine::hosts() const {
  std::vector<double> issued_us;
  for (const Device& device : devices_) issued_us.push_back(device.issued_us - now_);
  return issued_us;
}

// Adds what the device did since the start of its step.
void Machine::record(std::int32_t d, Activity activity, std::int32_t launch_id) {
  const Device& device = devices_[static_cast<std::size_t>(d)];
  times_[static_cast<std::size_t>(d)].activity_us[static_cast<std::size_t>(activity)] +=
      now_ - device.step_start_us;
  if (timeline_ && now_ > device.step_start_us) {
    activities_.push_back({Rank{d}, activity, static_cast<std::int32_t>(device.step),
                           device.step_start_us, now_, launch_id});
  }
}

void Machine::start_compute(std::int32_t d, double duration_us) {
  Device& device = devices_[static_cast<std::size_t>(d)];
  device.computing = true;
  count_computing(d, 1);
  device.work_left_us = duration_us;
  device.since_us = now_;
  device.speed = speed_of(d);
  push(now_ + duration_us / device.speed, EventType::kStepDone, d, ++device.version);
}

void Machine::end_compute(std::int32_t d) {
  devices_[static_cast<std::size_t>(d)].computing = false;
  count_computing(d, -1);
}

// The device computes slower while transfers take a part of it, or when devices share slots.
double Machine::speed_of(std::int32_t d) const {
  const Device& device = devices_[static_cast<std::size_t>(d)];
  double left = device.moving > 0 ? 1 - cluster_.sm_fraction : 1;
  left = std::max(kLeastShare * left,
                  left - device.moved_per_us * cluster_.transfer_compute_us_per_mb * kMbPerByte);
  const double slots = cluster_.compute_slots_per_node;
  if (slots == 0) return left;
  const std::int32_t computing = computing_[static_cast<std::size_t>(cluster_.node_of(Rank{d}))];
  return computing <= slots ? left : left * slots / computing;
}

// Continues the device's compute step, if there is one, at the current speed.
void Machine::change_speed(std::int32_t d) {
  Device& device = devices_[static_cast<std::size_t>(d)];
  const double speed = speed_of(d);
  if (!device.computing || speed == device.speed) return;
  device.work_left_us =
      std::max(0.0, device.work_left_us - (now_ - device.since_us) * device.speed);
  device.since_us = now_;
  device.speed = speed;
  push(now_ + device.work_left_us / speed, EventType::kStepDone, d, ++device.version);
}

// Called when transfers begin or end at a device; with sm_fraction they change its compute speed.
void Machine::change_moving(std::int32_t d, std::int32_t by) {
  devices_[static_cast<std::size_t>(d)].moving += by;
  change_speed(d);
}

// Called when rates have changed: with transfer_compute_us_per_mb they change devices' speeds.
void Machine::charge_transfers() {
  if (cluster_.transfer_compute_us_per_mb == 0) return;
  for (Device& device : devices_) device.moved_per_us = 0;
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    const double rate = network_.rate_of(static_cast<std::int32_t>(s));
    devices_[static_cast<std::size_t>(streams_[s].src)].moved_per_us += rate;
    devices_[static_cast<std::size_t>(streams_[s].dst)].moved_per_us += rate;
  }
  for (std::int32_t d = 0; d < cluster_.num_devices(); ++d) change_speed(d);
}

void Machine::count_computing(std::int32_t d, std::int32_t by) {
  if (cluster_.compute_slots_per_node == 0) return;
  computing_[static_cast<std::size_t>(cluster_.node_of(Rank{d}))] += by;
  sharing_changed_ = true;
}

// Called after all events of the current time.
void Machine::share_slots() {
  if (!sharing_changed_) return;
  sharing_changed_ = false;
  for (std::int32_t d = 0; d < cluster_.num_devices(); ++d) change_speed(d);
}

// Records the time of the step that ends now and begins the next one.
void Machine::end_step(std::int32_t d) {
  Device& device = devices_[static_cast<std::size_t>(d)];
  const TimedStep& step = step_of(d);
  record(d, device.merging ? Activity::kMerge : step.activity, step.launch_id);
  device.merging = false;
  const bool launches = !step.is_wait && step.launch_id >= 0;
  ++device.step;
  ++steps_over_;
  // A launch is issued when its step has ended.
  if (launches) issue_group(d);
  proceed(d);
}

// ---------------------------------------------------------------------------------- messages

void Machine::issue_group(std::int32_t d) {
  Device& device = devices_[static_cast<std::size_t>(d)];
  const std::int32_t issued = device.issued_groups++;
  const std::int32_t group = device.groups[static_cast<std::size_t>(issued)];
  groups_[static_cast<std::size_t>(group)].issued_us = now_;
  if (cluster_.launches == LaunchOrder::kConcurrent) {
    activate(group, -1);
  } else if (!device.group_runs) {
    activate_next(d, -1);
  }
}

// `after`: the launch of the device that had to end first; -1: none.
void Machine::activate(std::int32_t g, std::int32_t after) {
  Group& group = groups_[static_cast<std::size_t>(g)];
  for (const std::int32_t message : group.messages) open_end(message, group.device, after);
  if (!group.messages.empty()) return;
  group.done = true;
  end_wait_for(g);
}

// For kGrouped: activates the next launched group with anything to move, if there is one.
void Machine::activate_next(std::int32_t d, std::int32_t after) {
  Device& device = devices_[static_cast<std::size_t>(d)];
  device.group_runs = false;
  while (!device.group_runs && device.next_group < device.issued_groups) {
    const std::int32_t g = device.groups[static_cast<std::size_t>(device.next_group++)];
    device.group_runs = !groups_[static_cast<std::size_t>(g)].messages.empty();
    activate(g, after);
  }
}

// One end of a message may move. When both may, its latency begins, then its flow.
void Machine::open_end(std::int32_t m, std::int32_t device, std::int32_t after) {
  Message& message = messages_[static_cast<std::size_t>(m)];
  if (--message.ends_open > 0) return;
  message.start_us = now_;
  message.opener = device;
  message.queued_after = after;
  const bool local = cluster_.same_node(Rank{message.src}, Rank{message.dst});
  message.flow_us = now_ + (local ? cluster_.intra_latency_us : cluster_.inter_latency_us);
  push(message.flow_us, EventType::kFlowStart, m);
}

void Machine::start_flow(std::int32_t m) {
  const Message& message = messages_[static_cast<std::size_t>(m)];
  network_.add(message.stream, static_cast<double>(message.bytes), m);
  flows_changed_ = true;
  change_moving(message.src, 1);
  change_moving(message.dst, 1);
}

// Collectives have begun before attention: nothing waits for a launch or a latency.
void Machine::start_collective() {
  auto tag = static_cast<std::int32_t>(messages_.size());
  for (const CollectiveFlow& flow : collective_flows_) {
    network_.add(flow.stream, flow.bytes, tag++);
    const StreamEnds& ends = streams_[static_cast<std::size_t>(flow.stream)];
    change_moving(ends.src, 1);
    change_moving(ends.dst, 1);
    flows_changed_ = true;
  }
}

void Machine::end_flow(std::int32_t tag) {
  const auto messages = static_cast<std::int32_t>(messages_.size());
  if (tag < messages) {
    end_message(tag);
    return;
  }
  const CollectiveFlow& flow = collective_flows_[static_cast<std::size_t>(tag - messages)];
  const StreamEnds& ends = streams_[static_cast<std::size_t>(flow.stream)];
  flows_changed_ = true;
  change_moving(ends.src, -1);
  change_moving(ends.dst, -1);
  collective_end_us_ = now_;
}

void Machine::end_message(std::int32_t m) {
  const Message& message = messages_[static_cast<std::size_t>(m)];
  flows_changed_ = true;
  change_moving(message.src, -1);
  change_moving(message.dst, -1);
  if (timeline_) {
    const Group& sent = groups_[static_cast<std::size_t>(message.src_group)];
    const Group& received = groups_[static_cast<std::size_t>(message.dst_group)];
    const std::int32_t port = network_.ended_at_port();
    message_spans_.push_back({.src = Rank{message.src},
                              .dst = Rank{message.dst},
                              .src_launch = sent.launch_id,
                              .dst_launch = received.launch_id,
                              .bytes = message.bytes,
                              .start_us = message.start_us,
                              .end_us = now_,
                              .launched_us = std::max(sent.issued_us, received.issued_us),
                              .flow_us = message.flow_us,
                              .bound_by = port < ports_.num_ports()
                                              ? ports_.port(port)
                                              : NetworkPort{PortKind::kFlow, message.src},
                              .opener = Rank{message.opener},
                              .queued_after = message.queued_after});
  }
  end_message_at(message.src_group);
  end_message_at(message.dst_group);
}

void Machine::end_message_at(std::int32_t g) {
  Group& group = groups_[static_cast<std::size_t>(g)];
  if (--group.messages_left > 0) return;
  group.done = true;
  if (cluster_.launches == LaunchOrder::kGrouped) activate_next(group.device, group.launch_id);
  end_wait_for(g);
}

// The device of a launch that is over may wait for it.
void Machine::end_wait_for(std::int32_t g) {
  const Group& group = groups_[static_cast<std::size_t>(g)];
  Device& device = devices_[static_cast<std::size_t>(group.device)];
  if (!device.waiting || step_of(group.device).launch_id != group.launch_id) return;
  device.waiting = false;
  end_step(group.device);
}

// --------------------------------------------------------------------------------- main loop

void Machine::handle(const Event& event) {
  switch (event.type) {
    case EventType::kStepDone: {
      const Device& device = devices_[static_cast<std::size_t>(event.index)];
      // A change of speed has queued another end of the step: this one is outdated.
      if (!device.computing || device.version != event.version) return;
      end_compute(event.index);
      if (step_of(event.index).merge_us > 0 && !device.merging) {
        begin_merge(event.index);
      } else {
        end_step(event.index);
      }
      return;
    }
    case EventType::kIssued:
      begin_issued_step(event.index);
      return;
    case EventType::kFlowStart:
      start_flow(event.index);
      return;
    case EventType::kShareOut:
      share_out_queued_ = false;
      return;
  }
}

// The time between share-outs: 0 means that rates follow every change exactly.
double Machine::resolution_us() const {
  if (resolution_us_) return *resolution_us_;
  const std::int32_t devices = cluster_.num_devices();
  if (devices <= kExactDevices) return 0;
  return std::max(static_cast<double>(devices) / kExactDevices,
                  static_cast<double>(network_.num_flows()) / kFlowsPerUs);
}

// Shares out rates at most once per resolution; until then an event keeps the next one due.
void Machine::share_out_if_due() {
  if (!flows_changed_) return;
  if (now_ >= share_out_due_us_) {
    share_out_due_us_ = now_ + resolution_us();
    flows_changed_ = false;
    network_.share_out(now_, share_out_due_us_);
    charge_transfers();
  } else if (!share_out_queued_) {
    share_out_queued_ = true;
    push(share_out_due_us_, EventType::kShareOut, 0);
  }
}

void Machine::tell_progress() {
  constexpr std::int64_t kStepsBetween = 1024;
  if (!progress_ || steps_over_ < next_told_) return;
  next_told_ = steps_over_ + kStepsBetween;
  std::int64_t steps = 0;
  for (const TimedProgram& program : programs_) steps += std::ssize(program.steps);
  progress_("simulating", steps_over_, steps);
}

void Machine::run() {
  start_collective();
  for (std::size_t d = 0; d < devices_.size(); ++d) proceed(static_cast<std::int32_t>(d));
  share_out_if_due();
  while (true) {
    check_interrupt();
    share_slots();
    const double next_event =
        events_.empty() ? std::numeric_limits<double>::infinity() : events_.top().time_us;
    const double next = std::min(next_event, network_.next_end_us());
    if (next == std::numeric_limits<double>::infinity()) break;
    now_ = next;
    // All ends and events of this time come first, so that rates are computed once for them.
    while (network_.next_end_us() <= now_) end_flow(network_.pop_ended());
    while (!events_.empty() && events_.top().time_us <= now_) {
      const Event event = events_.top();
      events_.pop();
      handle(event);
    }
    share_out_if_due();
    tell_progress();
  }
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    // Nothing can happen any longer: a device that has not finished waits forever.
    if (!finished(static_cast<std::int32_t>(d))) fail_stuck();
  }
  double end = 0;
  for (const Device& device : devices_) end = std::max(end, device.end_us);
  now_ = end;
  for (std::size_t d = 0; d < devices_.size(); ++d) times_[d].idle_us = end - devices_[d].end_us;
}

void Machine::fail_stuck() const {
  for (std::size_t d = 0; d < devices_.size(); ++d) {
    const auto device = static_cast<std::int32_t>(d);
    if (finished(device)) continue;
    const bool grouped = cluster_.launches == LaunchOrder::kGrouped;
    throw InvalidPlan(fmt::format(
        "{}: rank {} waits forever for launch {} (instruction {}){}", where_, d,
        step_of(device).launch_id, devices_[d].step,
        grouped ? "; launches of this cluster move one after another (launches: grouped), which "
                  "verify proves possible"
                : ""));
  }
  throw InvalidPlan(fmt::format("{}: the programs do not end", where_));
}

}  // namespace contextile
