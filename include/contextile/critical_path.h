// Why a plan takes the time it takes: the critical path of its simulation, what every wait waits
// for, and what the largest causes cost, each found by simulating the plan without it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/plan.h"
#include "contextile/simulate.h"

namespace contextile {

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
