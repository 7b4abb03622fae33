// Measures this machine as a cluster profile, so that simulations predict the time of runs on it.
//
//   const MachineProfile profile = measure_machine({.ranks = 4});
//   std::printf("%s\n", to_json(profile.cluster).c_str());
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/extend/transport.h"
#include "contextile/workload.h"

namespace contextile {

enum class ProfileEffort : std::uint8_t {
  kQuick,     // seconds: a coarse grid, short samples
  kThorough,  // a minute or so
};

struct ProfileOptions {
  std::string kernel;      // empty: the preferred one for the dtype
  std::int32_t ranks = 4;  // number of ranks that measure at the same time; at least 1
  // If ranks are processes: the number of nodes, each with an equal run of consecutive ranks. 0:
  // one node per rank. In one process there is one node.
  std::int32_t nodes = 0;
  // Heads, dims and dtype of the measured attention; throughput depends on them.
  AttentionShape shape = {.q_heads = 8, .kv_heads = 4, .head_dim = 64, .value_dim = 64};
  ProfileEffort effort = ProfileEffort::kThorough;
};

// A timed call on full tiles, on every rank at once.
struct KernelSample {
  std::int64_t q_rows = 0;
  std::int64_t kv_rows = 0;
  std::int64_t tiles = 1;  // of the call
  double forward_s = 0;    // of the call
  double backward_s = 0;
};

// The pairs of ranks that send to each other, all at once. In pairs and incast, the receiver sends
// nothing in return.
enum class TransferPattern : std::uint8_t {
  kRing,      // every rank to the next one of its node
  kNodeRing,  // every rank to the same one of the next node
  kPairs,     // even ranks to the next odd one
  kIncast,    // all others to rank 0
  kAllToAll,
};
[[nodiscard]] std::string_view to_string(TransferPattern pattern);  // "ring", "node_ring", …

// The time of one exchange.
struct TransferSample {
  std::int32_t ranks = 0;
  std::int64_t bytes = 0;  // of one message
  double seconds = 0;      // from the launch to the end of the wait, on the slowest rank
  TransferPattern pattern = TransferPattern::kRing;
};

// Times of the kernel's calls while messages of some pattern moved, and without them.
struct BusySample {
  TransferPattern pattern = TransferPattern::kRing;
  std::int64_t bytes = 0;  // of one message
  double quiet_s = 0;      // the calls alone
  double busy_s = 0;       // launch, calls and wait; the messages arrived before the calls ended
};

struct MachineProfile {
  Cluster cluster;  // of ProfileOptions::ranks devices: the input of simulate()
  std::string kernel;
  std::vector<KernelSample> kernel_samples;  // the grid, q rows slowest
  std::vector<TransferSample> transfers;     // by pattern, ranks and bytes
  std::vector<BusySample> busy;              // only with ranks as processes
};

// Times the kernel on full tiles of a grid of sizes (up to where one call takes too long), on
// causal tiles (for the waste of a partial tile) and on empty calls; also the merge of partial
// results and the in-process transport. All ranks measure at once. If that is slower than one rank
// alone, because ranks share processor cores, the cluster has Cluster::compute_slots_per_node, and
// its rates are those of full speed. Every number is the fastest of several samples in wall time,
// so nothing else should run on the machine. `on_step` is called before each measurement with its
// subject, at most profile_steps(options) times. Throws the errors of check_profile_options.
[[nodiscard]] MachineProfile measure_machine(
    const ProfileOptions& options, const std::function<void(std::string_view)>& on_step = {});
// The same for a group of processes, of which `rank` is this one, and for the transport between
// them. Collective; every rank gets the same profile. Rates are those of all ranks at once: ranks
// that share cores, and nodes that share a machine, slow each other down as they did. Links between
// nodes, and within one if it has several ranks, are measured separately. The time that a launch
// and the wait for an arrived message take on a rank's own thread is measured separately, and so is
// the compute time that moving data costs (Cluster::transfer_compute_us_per_mb). Also throws
// InvalidArgument when the group has another size than options.ranks, and TransportError.
[[nodiscard]] MachineProfile measure_machine(
    const ProfileOptions& options, Transport& rank,
    const std::function<void(std::string_view)>& on_step = {});
[[nodiscard]] std::int64_t profile_steps(const ProfileOptions& options);
// Throws InvalidArgument on an unknown kernel, bad ranks, nodes that do not divide them, or a bad
// shape.
void check_profile_options(const ProfileOptions& options);

}  // namespace contextile
