// What a plan would take on a cluster: its programs run on a model of compute and network. Nothing
// here executes attention; `run_plan` (advanced/oracle.h) does.
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
  // Rates of transfers are shared out anew at most this often. 0: at every change, exactly. Unset:
  // 0 up to 64 devices; for more devices longer the more of them there are and the more transfers
  // move.
  std::optional<double> resolution_us = std::nullopt;
  ProgressHook progress = {};  // told how many of a program's instructions are over
};

enum class Activity : std::uint8_t {
  kAttention,  // attention instructions
  kMerge,      // reduce and copy instructions, conversions to and from the wire
  kLaunch,     // starting transfers
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

// Where messages share bandwidth, each direction for itself.
enum class PortKind : std::uint8_t {
  kDeviceOut,  // of a device into its node
  kDeviceIn,
  kNicOut,  // between nodes
  kNicIn,
};
struct NetworkPort {
  PortKind kind = PortKind::kDeviceOut;
  std::int32_t index = 0;  // device, or node · nics_per_node + NIC of the node
  friend bool operator==(const NetworkPort&, const NetworkPort&) = default;
};

// All units from one device to another in one launch.
struct MessageSpan {
  Rank src;
  Rank dst;
  std::int32_t src_launch = 0;  // launch ids
  std::int32_t dst_launch = 0;
  std::int64_t bytes = 0;
  double start_us = 0;  // both ends have launched it, and it is its turn
  double end_us = 0;
  double launched_us = 0;  // both ends have launched it; start_us, unless it queued
  double flow_us = 0;      // the latency is over, bytes move
  NetworkPort bound_by;    // what set its rate for most of the time since
  Rank opener;             // the end that was ready last
  // LaunchOrder::kGrouped: it queued at the opener until the messages of this launch of the
  // opener's were done; -1: it did not queue there.
  std::int32_t queued_after = -1;
};

// How one device spends one direction: the four activities and idle time add up to its time.
struct DeviceTimes {
  std::array<double, 4> activity_us{};  // by Activity
  double idle_us = 0;                   // done, while others are not

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
  std::vector<double> idle_us;           // of every device: done, while others are not
  std::vector<ActivitySpan> activities;  // with SimulateOptions::timeline, by device and time
  std::vector<MessageSpan> messages;     // likewise, by end
};

// One layer of every mask, all rounds: the sum over `programs`.
struct SimulatedDirection {
  double time_us = 0;
  double flops = 0;         // of attended pairs
  double mfu = 0;           // flops over what all devices could do together at attention_tflops
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
  // Those there are, forward first; they point into this.
  [[nodiscard]] std::vector<std::pair<Direction, const SimulatedDirection*>> directions() const&;
  void directions() && = delete;
};

// Runs every program of the plan on the cluster's cost model. Instructions of a device run in
// order; a launch starts its messages once both ends have launched them (and, with
// LaunchOrder::kGrouped, once the device's earlier launches are done), after the latency of the
// link; messages that move at the same time share every port they cross max-min fairly: the
// device's port inside a node, the NICs between nodes. Deterministic. The plan must be valid (see
// verify). Throws InvalidArgument when the cluster has another shape than the plan, InvalidPlan
// when the programs wait for each other forever. O(tiles + messages · concurrent messages).
[[nodiscard]] Simulation simulate(const Plan& plan, const Cluster& cluster,
                                  const SimulateOptions& options = {});

// Time of attention on one device of the cluster, µs, one head group. Tiles are computed piece by
// piece (a piece is a band: in composite blocks, one document's part). In one call the pieces of
// the same query rows are one run: the kernel goes through their keys, as its block table lists
// them, with the queries and the output at hand.
class TileCosts {
 public:
  TileCosts(const AttentionShape& shape, const Cluster& cluster);

  // A run of `rows` queries in which `computed_pairs` are computed, wasted ones included.
  [[nodiscard]] double run_us(Direction direction, std::int64_t rows, double computed_pairs,
                              std::int32_t head_groups) const;
  // A run of one piece: `rows` x `keys` of which `pairs` are attended.
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
// Why a plan takes the time it takes: the critical path of its simulation, what every wait waits
// for, and what the largest causes cost, each found by simulating the plan without it.

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

// A part of a chain in which each step could begin because the one before had ended.
struct PathStep {
  StepKind kind = StepKind::kAttention;
  Rank device;                 // that computes; a message's receiver; the last at a barrier
  std::int32_t program = 0;    // index in SimulatedDirection::programs; before a barrier
  std::int32_t activity = -1;  // index in the program's activities, of what a device does
  std::int32_t message = -1;   // index in its messages, of latency and transfer
  double start_us = 0;         // from the start of the direction
  double end_us = 0;
};

// From time 0 to the end of the direction's slowest devices, earliest first: a device's spans, and
// wherever it waits the message that came last, then what the end of the message did that was ready
// last, or with LaunchOrder::kGrouped the message that it queued behind. A step begins exactly when
// the one before ends, so the steps' times add up to the direction's. A message may move without
// taking time. The simulation has a timeline. O(spans + messages).
[[nodiscard]] std::vector<PathStep> critical_path(const SimulatedDirection& simulated);

// How long its steps take, by StepKind.
[[nodiscard]] std::array<double, 6> path_times_us(const std::vector<PathStep>& path);

// -------------------------------------------------------------------------------------- waits

// Why a device waits: for one message, the last to come of those of the launch. Times are µs within
// the wait; peer, queued, latency and transfer add up to it.
struct WaitReason {
  std::int32_t activity = 0;  // index in the program's activities
  std::int32_t message = 0;   // index in its messages
  Rank peer;                  // the other end
  double peer_us = 0;         // the peer had not launched it
  double queued_us = 0;       // LaunchOrder::kGrouped: earlier launches moved
  double latency_us = 0;
  double transfer_us = 0;
  std::array<double, 4> peer_was_us{};  // what the peer did in peer_us, by Activity
  // The steps that led to the end of the wait, as far as they lie in it, earliest first: where the
  // peer waited itself, they say for whom. Their times add up to the wait; program is 0, times are
  // the program's.
  std::vector<PathStep> chain;
  // Other messages that crossed the message's `bound_by` while it moved, indices by start.
  std::vector<std::int32_t> sharing;

  // The longest step of the chain.
  [[nodiscard]] const PathStep& root() const;
};

// One for every wait of a program that takes time, in the order of its activities. It has a
// timeline. O(spans + waits · (steps within the wait + messages of a port)).
[[nodiscard]] std::vector<WaitReason> wait_reasons(const SimulatedProgram& program,
                                                   const Cluster& cluster);

// ------------------------------------------------------------------------------------- causes

enum class Cause : std::uint8_t {
  kImbalance,      // a device computes longer than the mean of its program
  kTiles,          // attention below the kernel's best rate: small tiles, edges of masks
  kCalls,          // what an attention call costs before any work
  kMerging,        // merging, copying, converting to and from the wire
  kLaunches,       // starting transfers
  kLatency,        // of messages
  kNodeLinks,      // bandwidth between nodes
  kDeviceLinks,    // bandwidth of devices' ports inside their nodes
  kLaunchOrder,    // launches of a device move one after another
  kBarriers,       // rounds wait for the slowest device
  kStolenCompute,  // transfers take compute (Cluster::sm_fraction, transfer_compute_us_per_mb)
  kSharedSlots,    // devices share compute (Cluster::compute_slots_per_node)
};
[[nodiscard]] std::string_view to_string(Cause cause);  // "imbalance", "node_links", …

// Times are of all directions together: one layer of every mask, all rounds.
struct TimeCause {
  Cause cause = Cause::kImbalance;
  // How much shorter the steps of the critical path are without the cause, each by itself. Of
  // barriers: how long the devices on which the path goes on have waited at them; of launch order:
  // how long its messages queued.
  double path_us = 0;
  double without_us = 0;   // the simulated time without the cause, all else the same
  double gain_us = 0;      // the simulated time with everything, less that
  std::int64_t steps = 0;  // of the critical path that the cause is about
  // kImbalance: who computes how many times the mean, where that costs most.
  Rank device = {};
  double ratio = 0;
  // kNodeLinks, kDeviceLinks: the port that most of the path's time goes through, what crosses it,
  // and whether it alone was without a limit, or all of its kind both ways.
  std::optional<NetworkPort> port = {};
  std::int64_t bytes = 0;
  std::int32_t num_ports = 0;  // without a limit
};

// The causes that cost at least a thousandth of the time, largest gain first, at most `limit`. Each
// is the plan simulated again without it; gains of several together may be more or less than their
// sum. `simulation` is of the plan on the cluster with a timeline. Throws InvalidArgument when it
// has none. Costs some ten simulations.
[[nodiscard]] std::vector<TimeCause> causes_of_time(const Plan& plan, const Cluster& cluster,
                                                    const Simulation& simulation,
                                                    std::size_t limit = 5);

}  // namespace contextile
