// Measuring this machine into a cluster profile, so that simulations predict what runs here take.
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
  std::int32_t ranks = 4;  // that all measure at the same time; at least 1
  // With ranks as processes: the nodes they are on, each with an equal run of consecutive ranks.
  // 0: a node for every rank. In one process there is one node.
  std::int32_t nodes = 0;
  // Heads, dims and dtype of the measured attention; throughput depends on them.
  AttentionShape shape = {.q_heads = 8, .kv_heads = 4, .head_dim = 64, .value_dim = 64};
  ProfileEffort effort = ProfileEffort::kThorough;
};

// A call on full tiles, on every rank at once.
struct KernelSample {
  std::int64_t q_rows = 0;
  std::int64_t kv_rows = 0;
  std::int64_t tiles = 1;  // of the call
  double forward_s = 0;    // of the call
  double backward_s = 0;
};

// Who sends to whom, all at once. Without a receiver's answer: pairs, incast.
enum class TransferPattern : std::uint8_t {
  kRing,      // every rank to the next one of its node
  kNodeRing,  // every rank to the same one of the next node
  kPairs,     // even ranks to the next odd one
  kIncast,    // all others to rank 0
  kAllToAll,
};
[[nodiscard]] std::string_view to_string(TransferPattern pattern);  // "ring", "node_ring", …

// What one exchange took.
struct TransferSample {
  std::int32_t ranks = 0;
  std::int64_t bytes = 0;  // of one message
  double seconds = 0;      // from the launch to the end of the wait, on the slowest rank
  TransferPattern pattern = TransferPattern::kRing;
};

// The kernel's calls while messages of some pattern moved, and without.
struct BusySample {
  TransferPattern pattern = TransferPattern::kRing;
  std::int64_t bytes = 0;  // of one message
  double quiet_s = 0;      // the calls alone
  double busy_s = 0;  // launch, calls, wait; the messages were there before the calls were done
};

struct MachineProfile {
  Cluster cluster;  // of ProfileOptions::ranks devices: what simulate() wants
  std::string kernel;
  std::vector<KernelSample> kernel_samples;  // the grid, q rows slowest
  std::vector<TransferSample> transfers;     // by pattern, ranks and bytes
  std::vector<BusySample> busy;              // of ranks as processes
};

// Times the kernel on full tiles of a grid of sizes (up to where one call takes too long), on
// causal tiles (what a partial tile wastes) and on empty calls; the merge of partial results; and
// the in-process transport. All ranks measure at once; where that is slower than one rank alone,
// because ranks share processor cores, the cluster has Cluster::compute_slots_per_node, and its
// rates are those of full speed. Every number is the fastest of several samples by the clock:
// nothing else should run on the machine. `on_step` is called before each measurement with what it
// measures, at most profile_steps(options) times. Throws what check_profile_options throws.
[[nodiscard]] MachineProfile measure_machine(
    const ProfileOptions& options, const std::function<void(std::string_view)>& on_step = {});
// The same of a group of processes, of which `rank` is this one, and of the transport between them.
// Collective; every rank gets the same profile. Rates are those of all ranks at once: ranks that
// share cores, and nodes that share a machine, slow each other down as they did. Links between
// nodes, and within one if it has several ranks, are measured apart; so are the time that a launch
// and the wait for what has come take from a rank's own thread, and the compute that moving data
// costs (Cluster::transfer_compute_us_per_mb). Throws, too, InvalidArgument when the group has
// another size than options.ranks, and TransportError.
[[nodiscard]] MachineProfile measure_machine(
    const ProfileOptions& options, Transport& rank,
    const std::function<void(std::string_view)>& on_step = {});
[[nodiscard]] std::int64_t profile_steps(const ProfileOptions& options);
// Throws InvalidArgument on an unknown kernel, bad ranks, nodes that do not divide them, or a bad
// shape.
void check_profile_options(const ProfileOptions& options);

}  // namespace contextile
