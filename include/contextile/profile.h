// Measuring this machine into a cluster profile, so that simulations predict what runs here take.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/workload.h"

namespace contextile {

enum class ProfileEffort : std::uint8_t {
  kQuick,     // seconds: a coarse grid, short samples
  kThorough,  // a minute or so
};

struct ProfileOptions {
  std::string kernel;      // empty: the preferred one for the dtype
  std::int32_t ranks = 4;  // in-process ranks that all measure at the same time; at least 1
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

// Every rank of a group sends to the next one and receives from the one before.
struct TransferSample {
  std::int32_t ranks = 0;
  std::int64_t bytes = 0;  // of one message
  double seconds = 0;      // from the launch to the end of the wait
};

struct MachineProfile {
  Cluster cluster;  // one node of ProfileOptions::ranks devices: what simulate() wants
  std::string kernel;
  std::vector<KernelSample> kernel_samples;  // the grid, q rows slowest
  std::vector<TransferSample> transfers;     // by ranks and bytes
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
[[nodiscard]] std::int64_t profile_steps(const ProfileOptions& options);
// Throws InvalidArgument on an unknown kernel, bad ranks or a bad shape.
void check_profile_options(const ProfileOptions& options);

}  // namespace contextile
