// How fast any plan could be: lower bounds on simulated time, to judge plans by.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/plan.h"
#include "contextile/workload.h"

namespace contextile {

// Which plans a bound speaks of. The looser these limits, the lower the bound.
struct BoundOptions {
  // Most tokens a device owns. Unset: with a home layout what it says; else T/R rounded up, plus
  // 1024: longest-first placement of blocks of up to 1024 tokens stays below that.
  std::optional<std::int64_t> max_owned_tokens = std::nullopt;
  // Most tokens the devices of a node own together. Unset: devices_per_node times a device's (with
  // a home layout: what it says).
  std::optional<std::int64_t> max_node_tokens = std::nullopt;
  // Plans whose head groups divide this. Unset: the KV heads, that is, every plan.
  std::optional<std::int32_t> head_groups = std::nullopt;
  // Partial results on the wire. Unset: the cheapest a plan could use, two bytes each. Finished
  // results travel in the activation dtype, so that no result is charged more than that.
  std::optional<Dtype> partial_wire = std::nullopt;
};

// What every plan takes at least, µs; one direction, one layer of every mask. Every part is a bound
// by itself; sums over masks.
struct TimeBound {
  double compute_us = 0;        // total kernel time at its cheapest, spread over all devices
  double device_ports_us = 0;   // moving what must be moved between devices; 0: nothing must
  double node_uplinks_us = 0;   // the same between nodes
  double communication_us = 0;  // the larger of these two, mask by mask
  double latency_us = 0;        // one call and one message if anything must be moved, else 0
  // Computing and moving together: compute, and what devices that take part in transfers lose to
  // launches and to another call or to waiting for the first input or the last result.
  double joint_us = 0;
  double separate_us = 0;  // the largest of compute, communication and latency, mask by mask
  double time_us = 0;      // the largest of all, mask by mask
  // "compute", "device ports", "node uplinks", "latency" or "compute and latency", the joint part.
  std::string binding = "compute";
};

// A time that simulate() never undercuts with any plan of the workload that keeps to the options,
// whatever its strategy, blocks, rounds, schedule. Compute: the kernel's cost on the best tiling of
// each document. Communication: the isoperimetry of attention, of devices at all their ports and of
// nodes at their NICs (docs/simulator.md, "Bounds"); backward may have kept Q, K and V from
// forward. Throws InvalidArgument on bad options, workloads or clusters. Deterministic.
// O(bands · log + kinds of documents): 5 to 20 ms at 131072 tokens on 32 devices, a tenth of a
// second at 2M on 512 (docs/simulator.md has a table).
[[nodiscard]] TimeBound lower_bound(const Workload& workload, const Cluster& cluster,
                                    Direction direction, const BoundOptions& options = {});

// The narrowest options that a plan keeps to: what its devices and nodes own, its head groups, its
// wire. lower_bound with them is a bound for this plan.
[[nodiscard]] BoundOptions bound_options_of(const Plan& plan);

// The usual limits, as wide as the plan of this workload needs them: bounds to put plans beside
// that own about the same, never above their times.
[[nodiscard]] BoundOptions bound_options_beside(const Plan& plan, const Workload& workload,
                                                const Cluster& cluster);

}  // namespace contextile
