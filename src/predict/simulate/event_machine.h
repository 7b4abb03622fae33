// The event loop of the simulation: devices run their steps, messages flow.
#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "contextile/simulate.h"
#include "predict/simulate/collective_load.h"
#include "predict/simulate/fluid_network.h"
#include "predict/simulate/ports.h"
#include "predict/simulate/program_costs.h"

namespace contextile {

// Runs one program of every device from time 0. `where` names round, mask and direction in errors;
// ports in `unlimited` carry any amount at once.
class Machine {
 public:
  Machine(const Cluster& cluster, std::vector<TimedProgram> programs, std::string where,
          const SimulateOptions& options, const std::vector<NetworkPort>& unlimited = {},
          const CollectiveLoad& collective = {});

  // Sets when the hosts of the devices are free to issue, by device; the default is the start. They
  // may be ahead of it.
  void set_hosts(const std::vector<double>& issued_us);
  // When the hosts have issued everything, from the end of the program on.
  [[nodiscard]] std::vector<double> hosts() const;

  // Throws InvalidPlan if devices wait for each other forever, or ends of messages do not match.
  void run();

  [[nodiscard]] const std::vector<DeviceTimes>& devices() const { return times_; }
  [[nodiscard]] double time_us() const { return now_; }
  // When the collective has moved everything; it may be later than the end of the programs.
  [[nodiscard]] double collective_end_us() const { return collective_end_us_; }
  [[nodiscard]] std::vector<ActivitySpan>& activities() { return activities_; }
  [[nodiscard]] std::vector<MessageSpan>& messages() { return message_spans_; }
  [[nodiscard]] std::int64_t intra_bytes() const { return intra_bytes_; }
  [[nodiscard]] std::int64_t inter_bytes() const { return inter_bytes_; }

 private:
  enum class EventType : std::uint8_t { kStepDone, kIssued, kFlowStart, kShareOut };
  struct Event {
    double time_us = 0;
    std::int64_t order = 0;  // of creation: ties are served first come, first served
    EventType type = EventType::kStepDone;
    std::int32_t index = 0;    // device or message
    std::int32_t version = 0;  // of the device's step
    bool operator>(const Event& other) const {
      return time_us != other.time_us ? time_us > other.time_us : order > other.order;
    }
  };
  struct Message {
    std::int32_t src = 0;
    std::int32_t dst = 0;
    std::int64_t bytes = 0;
    std::int32_t src_group = -1;  // index into groups_
    std::int32_t dst_group = -1;
    std::int32_t stream = -1;    // of the network
    std::int32_t ends_open = 2;  // ends that may not move yet
    double start_us = 0;
    double flow_us = 0;
    std::int32_t opener = -1;  // device
    std::int32_t queued_after = -1;
  };
  // Ends of a stream of the network.
  struct StreamEnds {
    std::int32_t src = 0;
    std::int32_t dst = 0;
  };
  // The bytes that the collective moves over a stream.
  struct CollectiveFlow {
    std::int32_t stream = -1;
    double bytes = 0;
  };
  // One launch of one device.
  struct Group {
    std::int32_t device = 0;
    std::int32_t launch_id = 0;
    std::vector<std::int32_t> messages;
    std::int32_t messages_left = 0;
    double issued_us = 0;
    bool done = false;
  };
  struct Device {
    std::size_t step = 0;
    double step_start_us = 0;
    double issued_us = 0;     // when the host has issued the step
    bool merging = false;     // its attention is over
    double work_left_us = 0;  // of a compute step, at `since_us`
    double since_us = 0;
    double speed = 1;  // of a compute step since then
    std::int32_t version = 0;
    std::int32_t moving = 0;      // flows that start or end here
    double moved_per_us = 0;      // bytes in and out; with transfer_compute_us_per_mb
    std::int32_t next_group = 0;  // kGrouped: first group that has not begun
    bool group_runs = false;      // kGrouped
    std::int32_t issued_groups = 0;
    std::vector<std::int32_t> groups;  // in program order
    bool computing = false;
    bool waiting = false;
    double end_us = 0;
  };

  void number_groups();
  std::int32_t number_messages();
  void match_messages();
  void number_collective(const CollectiveLoad& collective, std::int32_t limit_port);
  void check_bytes(const Message& message, std::int64_t received_bytes) const;
  [[nodiscard]] const TimedStep& step_of(std::int32_t d) const;
  [[nodiscard]] bool finished(std::int32_t d) const;

  void push(double time_us, EventType type, std::int32_t index, std::int32_t version = 0);
  void proceed(std::int32_t d);
  void begin_issued_step(std::int32_t d);
  void begin_merge(std::int32_t d);
  void record(std::int32_t d, Activity activity, std::int32_t launch_id);
  void end_step(std::int32_t d);
  void start_compute(std::int32_t d, double duration_us);
  void end_compute(std::int32_t d);
  [[nodiscard]] double speed_of(std::int32_t d) const;
  void change_speed(std::int32_t d);
  void count_computing(std::int32_t d, std::int32_t by);
  void share_slots();
  void change_moving(std::int32_t d, std::int32_t by);
  void charge_transfers();
  void issue_group(std::int32_t d);
  void activate(std::int32_t group, std::int32_t after);
  void activate_next(std::int32_t d, std::int32_t after);
  void open_end(std::int32_t message, std::int32_t device, std::int32_t after);
  void start_flow(std::int32_t message);
  void start_collective();
  void end_flow(std::int32_t tag);
  void end_message(std::int32_t message);
  void end_message_at(std::int32_t group);
  void end_wait_for(std::int32_t group);
  void handle(const Event& event);
  [[nodiscard]] double resolution_us() const;
  void share_out_if_due();
  void tell_progress();
  [[noreturn]] void fail_stuck() const;

  const Cluster& cluster_;
  Ports ports_;
  std::vector<TimedProgram> programs_;
  std::string where_;
  bool timeline_;
  std::optional<double> resolution_us_;
  FluidNetwork network_;
  std::vector<Device> devices_;
  std::vector<Group> groups_;
  std::vector<Message> messages_;
  std::vector<StreamEnds> streams_;  // by stream of the network
  std::vector<CollectiveFlow> collective_flows_;
  double collective_end_us_ = 0;
  std::vector<std::int32_t> computing_;  // devices of each node
  std::vector<DeviceTimes> times_;
  std::vector<ActivitySpan> activities_;
  std::vector<MessageSpan> message_spans_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::int64_t next_order_ = 0;
  double now_ = 0;
  double share_out_due_us_ = 0;
  bool flows_changed_ = false;
  bool share_out_queued_ = false;
  bool sharing_changed_ = false;  // with compute_slots_per_node: the devices that compute changed
  std::int64_t intra_bytes_ = 0;
  std::int64_t inter_bytes_ = 0;
  ProgressHook progress_;
  std::int64_t steps_over_ = 0;  // finished steps of all devices
  std::int64_t next_told_ = 0;
};

}  // namespace contextile
