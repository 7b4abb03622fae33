// What a plan would take on a cluster: its programs run on a model of compute and network. Nothing
// here executes attention; `run_plan` (oracle.h) does.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/plan.h"
#include "contextile/progress.h"

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

}  // namespace contextile
