// The bytes that plans move and how evenly they share work, without a clock.
#pragma once

#include <span>

#include "contextile/planner.h"
#include "contextile/workload.h"

namespace contextile {

// The bytes that the plans of one strategy move in forward and backward of one layer: means over
// batches.
struct MeanMovement {
  double inter_bytes = 0;    // between nodes
  double device_bytes = 0;   // all bytes over the number of devices: mean of sent, and of received
  double busiest_bytes = 0;  // the most that a device sends and receives, both directions
  double compute_overload = 0;  // max / mean - 1 of forward FLOPs
  double token_overload = 0;    // the same of owned tokens
  // (max - mean) / max of what devices accumulate over all rounds and batches: forward FLOPs, and
  // bytes that they send and receive in both directions.
  double accumulated_compute_imbalance = 0;
  double accumulated_traffic_imbalance = 0;
  double tiles = 0;  // forward
};
// Plans and verifies; the strategy must apply to every batch.
[[nodiscard]] MeanMovement movement_of(const StrategyChoice& choice, const PlanInput& input,
                                       std::span<const Workload> batches);

}  // namespace contextile
