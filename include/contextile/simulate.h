// Predicts the time that a plan takes on a cluster: its programs run on a model of compute and
// network. Nothing here executes attention; `run_plan` (advanced/oracle.h) does.
//
//   const Plan plan = load_plan("batch.plan");
//   const Simulation simulation = simulate(plan, load_cluster("dgx-h200:4x8"));
//   std::printf("%.1f us\n", simulation.time_us());
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/base.h"
#include "contextile/cluster.h"
#include "contextile/plan.h"

namespace contextile {

struct SimulateOptions {
  bool timeline = false;  // also return every span and message
  // Shortest time between two updates of the transfers' shares of bandwidth, µs. 0: they are
  // updated at every change, exactly. Unset: 0 up to 64 devices; for more devices it grows with
  // their number and with the number of transfers that move.
  std::optional<double> resolution_us = std::nullopt;
  ProgressHook progress = {};  // receives the number of a program's instructions that are over
};

enum class Activity : std::uint8_t {
  kAttention,  // attention instructions
  kMerge,      // reduce and copy instructions, conversions to and from the wire
  kLaunch,     // starting transfers, waiting until the host issues work
  kExposed,    // waiting for transfers
};
[[nodiscard]] std::string_view to_string(Activity activity);  // "attention", "merge", …

// One instruction of a device.
struct ActivitySpan {
  Rank device;
  Activity activity = Activity::kAttention;
  std::int32_t instruction = 0;  // index in the device's program
  double start_us = 0;
  double end_us = 0;
  std::int32_t launch = -1;  // id, of launches and waits
};

// Kinds of ports where messages share bandwidth, each direction separately.
enum class PortKind : std::uint8_t {
  kDeviceOut,  // from a device into its node
  kDeviceIn,
  kNicOut,  // from a node to others
  kNicIn,
  kFlow,  // from a device to one of another node (Cluster::flow_gbytes_per_s)
};
struct NetworkPort {
  PortKind kind = PortKind::kDeviceOut;
  // Device, of a flow the one that sends; or node · nics_per_node + NIC of the node.
  std::int32_t index = 0;
  friend bool operator==(const NetworkPort&, const NetworkPort&) = default;
};

// All units from one device to another in one launch.
struct MessageSpan {
  Rank src;
  Rank dst;
  std::int32_t src_launch = 0;  // launch ids
  std::int32_t dst_launch = 0;
  std::int64_t bytes = 0;
  double start_us = 0;  // both ends have launched it and its turn has come
  double end_us = 0;
  double launched_us = 0;  // both ends have launched it; start_us, unless it queued
  double flow_us = 0;      // time at which the latency is over and bytes begin to move
  NetworkPort bound_by;    // port that limited its rate for most of the time since flow_us
  Rank opener;             // end that was ready last
  // LaunchOrder::kGrouped: launch of the opener whose messages it queued behind; -1: it did not
  // queue there.
  std::int32_t queued_after = -1;
};

// The time of one device in one direction: the four activities and idle time add up to the
// direction's time.
struct DeviceTimes {
  std::array<double, 4> activity_us{};  // by Activity
  double idle_us = 0;                   // done, while other devices are not

  [[nodiscard]] double busy_us() const { return activity_us[0] + activity_us[1] + activity_us[2]; }
  [[nodiscard]] double of(Activity activity) const {
    return activity_us[static_cast<std::size_t>(activity)];
  }
};

// One round and mask of a direction; all devices start together.
struct SimulatedProgram {
  std::int32_t round = 0;
  std::int32_t mask = 0;
  double time_us = 0;
  std::vector<double> idle_us;           // of every device: done, while other devices are not
  std::vector<ActivitySpan> activities;  // with SimulateOptions::timeline, by device and time
  std::vector<MessageSpan> messages;     // likewise, by end
};

// One layer of every mask, all rounds: the sum over `programs`.
struct SimulatedDirection {
  double time_us = 0;
  double flops = 0;  // of attended pairs
  double mfu = 0;    // flops over what all devices could compute in the time at attention_tflops
  double attention_us = 0;  // mean over devices: the time if work were balanced, all else free
  double exposed_us = 0;    // mean over devices
  std::int64_t intra_bytes = 0;
  std::int64_t inter_bytes = 0;
  std::vector<DeviceTimes> devices;
  std::vector<SimulatedProgram> programs;
};

struct Simulation {
  std::optional<SimulatedDirection> forward;
  std::optional<SimulatedDirection> backward;

  [[nodiscard]] double time_us() const {
    return (forward ? forward->time_us : 0) + (backward ? backward->time_us : 0);
  }
  // Returns the directions that are set, forward first. The pointers point into this object.
  [[nodiscard]] std::vector<std::pair<Direction, const SimulatedDirection*>> directions() const&;
  void directions() && = delete;
};

// Runs every program of the plan on the cluster's cost model. Instructions of a device run in
// order. A launch starts its messages once both ends have launched them (with
// LaunchOrder::kGrouped, also once the device's earlier launches are done) and the latency of the
// link has passed. Messages that move at the same time share every port they cross max-min fairly:
// the device's port inside a node, the NICs between nodes. Deterministic.
//
// The plan must be valid (see verify). Throws InvalidArgument when the cluster has another shape
// than the plan, and InvalidPlan when the programs wait for each other forever. O(tiles + messages
// · concurrent messages).
[[nodiscard]] Simulation simulate(const Plan& plan, const Cluster& cluster,
                                  const SimulateOptions& options = {});

// Time of attention on one device of the cluster, µs, for one head group. Tiles are computed piece
// by piece (a piece is a band: in composite blocks, one document's part). In one call the pieces of
// the same query rows form one run: the kernel goes through their keys in the order of its block
// table, and keeps the queries and the output at hand.
class TileCosts {
 public:
  TileCosts(const AttentionShape& shape, const Cluster& cluster);

  // Time of a run of `rows` queries in which `computed_pairs` are computed, wasted ones included.
  [[nodiscard]] double run_us(Direction direction, std::int64_t rows, double computed_pairs,
                              std::int32_t head_groups) const;
  // Time of a run of one piece: `rows` x `keys`, of which `pairs` are attended.
  [[nodiscard]] double piece_us(Direction direction, std::int64_t rows, std::int64_t keys,
                                std::int64_t pairs, std::int32_t head_groups) const;

 private:
  AttentionShape shape_;
  AttentionProfile profile_;
  AttentionShares shares_;
  double attention_tflops_;
};

// ----------------------------------------------------------------------------------- critical path
//
// Explains the time of a plan: the critical path of its simulation, the cause of every wait, and
// the cost of the largest causes, each found by simulating the plan without it.

// ------------------------------------------------------------------------------ critical path

enum class StepKind : std::uint8_t {
  kAttention,  // a device computes
  kMerge,
  kLaunch,
  kLatency,   // a message that both ends have launched does not move yet
  kTransfer,  // a message moves
  kBarrier,   // the next round or mask begins once all devices are done; takes no time
};
[[nodiscard]] std::string_view to_string(StepKind kind);  // "attention", "latency", …

// One step of a chain in which each step can begin because the one before has ended.
struct PathStep {
  StepKind kind = StepKind::kAttention;
  Rank device;                 // that computes; receiver of a message; last device at a barrier
  std::int32_t program = 0;    // index in SimulatedDirection::programs; before a barrier
  std::int32_t activity = -1;  // index in the program's activities, of a device's step
  std::int32_t message = -1;   // index in its messages, of latency and transfer
  double start_us = 0;         // from the start of the direction
  double end_us = 0;
};

// Returns the critical path from time 0 to the end of the direction's slowest devices, earliest
// step first. It consists of a device's spans and, wherever that device waits, the message that
// came last. It goes on with the activity of the end of the message that was ready last or, with
// LaunchOrder::kGrouped, with the message that it queued behind. A step begins exactly when the one
// before ends, so the steps' times add up to the direction's. A message may move without taking
// time. The simulation must have a timeline. O(spans + messages).
[[nodiscard]] std::vector<PathStep> critical_path(const SimulatedDirection& simulated);

// Returns the total time of the path's steps, by StepKind.
[[nodiscard]] std::array<double, 6> path_times_us(const std::vector<PathStep>& path);

// -------------------------------------------------------------------------------------- waits

// The reason of one wait: one message, the last to arrive of those of the launch. Times are µs
// within the wait; peer, queued, latency and transfer add up to it.
struct WaitReason {
  std::int32_t activity = 0;  // index in the program's activities
  std::int32_t message = 0;   // index in its messages
  Rank peer;                  // the other end
  double peer_us = 0;         // the peer had not launched it
  double queued_us = 0;       // LaunchOrder::kGrouped: earlier launches moved
  double latency_us = 0;
  double transfer_us = 0;
  std::array<double, 4> peer_was_us{};  // activities of the peer in peer_us, by Activity
  // The steps that led to the end of the wait, as far as they lie in it, earliest first. If the
  // peer itself waited, they show for which device. Their times add up to the wait. `program` is 0,
  // and times are the program's.
  std::vector<PathStep> chain;
  // Indices of other messages that crossed the message's `bound_by` while it moved, by start.
  std::vector<std::int32_t> sharing;

  // The longest step of the chain.
  [[nodiscard]] const PathStep& root() const;
};

// Returns one reason for every wait of a program that takes time, in the order of its activities.
// The program must have a timeline. O(spans + waits · (steps within the wait + messages of a
// port)).
[[nodiscard]] std::vector<WaitReason> wait_reasons(const SimulatedProgram& program,
                                                   const Cluster& cluster);

// ------------------------------------------------------------------------------------- causes

enum class Cause : std::uint8_t {
  kImbalance,      // a device computes longer than the mean of its program
  kTiles,          // attention below the kernel's best rate: small tiles, edges of masks
  kCalls,          // fixed cost of an attention call, before any work
  kMerging,        // merging, copying, converting to and from the wire
  kLaunches,       // starting transfers
  kLatency,        // latency of messages
  kNodeLinks,      // bandwidth between nodes
  kDeviceLinks,    // bandwidth of devices' ports inside their nodes
  kFlows,          // the rate of one flow between nodes (Cluster::flow_gbytes_per_s)
  kHost,           // the device waits until its host issues work (EngineCosts)
  kLaunchOrder,    // launches of a device move one after another
  kBarriers,       // rounds wait for the slowest device
  kStolenCompute,  // transfers take compute (Cluster::transfer_sms, sm_fraction,
                   // transfer_compute_us_per_mb)
  kSharedSlots,    // devices share compute (Cluster::compute_slots_per_node)
};
[[nodiscard]] std::string_view to_string(Cause cause);  // "imbalance", "node_links", …

// A cause and its cost. Times are of all directions together: one layer of every mask, all rounds.
struct TimeCause {
  Cause cause = Cause::kImbalance;
  // How much shorter the steps of the critical path are without the cause, each step by itself. For
  // barriers: how long the devices on which the path goes on have waited at them. For launch order:
  // how long its messages queued.
  double path_us = 0;
  double without_us = 0;   // the simulated time without the cause, all else the same
  double gain_us = 0;      // simulated time with everything, less without_us
  std::int64_t steps = 0;  // number of steps of the critical path that have this cause
  // kImbalance: the device that computes longest relative to the mean, where that costs most, and
  // its multiple of the mean.
  Rank device = {};
  double ratio = 0;
  // kNodeLinks, kDeviceLinks: the port that most of the path's time goes through, the bytes that
  // cross it, and how many ports have no limit in the simulation without the cause: this one alone,
  // or all of its kind in both directions.
  std::optional<NetworkPort> port = {};
  std::int64_t bytes = 0;
  std::int32_t num_ports = 0;  // without a limit
};

// Returns the causes that cost at least a thousandth of the time, largest gain first, at most
// `limit`. Each gain comes from simulating the plan again without the cause; gains of several
// together may be more or less than their sum. `simulation` must be of the plan on the cluster with
// a timeline. Throws InvalidArgument when it has none. Costs about ten simulations.
[[nodiscard]] std::vector<TimeCause> causes_of_time(const Plan& plan, const Cluster& cluster,
                                                    const Simulation& simulation,
                                                    std::size_t limit = 5);

}  // namespace contextile
