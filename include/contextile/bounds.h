// Computes lower bounds on the simulated time of any plan, to judge plans by.
//
//   const std::vector<std::int64_t> lengths = {90'000, 40'572};
//   const Workload batch = make_workload(lengths, AttentionShape{});
//   const TimeBound bound =
//       lower_bound(batch, load_cluster("dgx-h200:4x8"), Direction::kForward);
//   std::printf("%.1f us, by %s\n", bound.time_us, bound.binding.c_str());
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "contextile/cluster.h"
#include "contextile/plan.h"
#include "contextile/workload.h"

namespace contextile {

// The plans that a bound covers. The looser these limits, the lower the bound.
struct BoundOptions {
  // Most tokens that a device owns. Unset: the home layout's count if there is one; otherwise T/R
  // rounded up, plus 1024, because longest-first placement of blocks of up to 1024 tokens stays
  // below that.
  std::optional<std::int64_t> max_owned_tokens = std::nullopt;
  // Most tokens that the devices of a node own together. Unset: devices_per_node times the limit of
  // a device, or the home layout's count if there is one.
  std::optional<std::int64_t> max_node_tokens = std::nullopt;
  // The bound covers plans whose numbers of head groups divide this. Unset: the number of KV heads,
  // so every plan.
  std::optional<std::int32_t> head_groups = std::nullopt;
  // Dtype of partial results on the wire. Unset: the cheapest that a plan could use, two bytes per
  // element. Finished results travel in the activation dtype, so no result is charged more than
  // that.
  std::optional<Dtype> partial_wire = std::nullopt;
};

// The least time that any plan takes, µs, for one direction and one layer of every mask. Every part
// is a bound by itself. Values are sums over masks.
struct TimeBound {
  double compute_us = 0;        // total kernel time at its cheapest, spread over all devices
  double device_ports_us = 0;   // moving data that must cross between devices; 0: none must
  double node_uplinks_us = 0;   // the same between nodes
  double communication_us = 0;  // the larger of these two, mask by mask
  double latency_us = 0;        // one call and one message if any data must move, otherwise 0
  // Computing and moving together: compute, plus the time that devices with transfers lose to
  // launches and to another call, or to waiting for the first input or the last result.
  double joint_us = 0;
  double separate_us = 0;  // the largest of compute, communication and latency, mask by mask
  double time_us = 0;      // the largest of all, mask by mask
  // The part that is largest: "compute", "device ports", "node uplinks", "latency", or "compute and
  // latency" for the joint part.
  std::string binding = "compute";
};

// Returns a time that simulate() never undercuts with any plan of the workload that keeps to the
// options, whatever its strategy, blocks, rounds and schedule. Compute: the kernel's cost on the
// best tiling of each document. Communication: the isoperimetry of attention, of devices at all
// their ports and of nodes at their NICs (docs/predict.md, "Bounds"). Backward may have kept Q, K
// and V from forward. Throws InvalidArgument on bad options, workloads or clusters. Deterministic.
// O(bands · log + kinds of documents): 11 ms on average at 131072 tokens on 32 devices
// (docs/results/prediction.md has a table).
[[nodiscard]] TimeBound lower_bound(const Workload& workload, const Cluster& cluster,
                                    Direction direction, const BoundOptions& options = {});

// Returns the narrowest options that a plan keeps to: the tokens its devices and nodes own, its
// head groups and its wire dtype. lower_bound with them is a bound for this plan.
[[nodiscard]] BoundOptions bound_options_of(const Plan& plan);

// Returns the default limits, widened where this plan of the workload needs it. Bounds with them
// are for comparing plans that own about the same, and are never above the times of those plans.
[[nodiscard]] BoundOptions bound_options_beside(const Plan& plan, const Workload& workload,
                                                const Cluster& cluster);

}  // namespace contextile
