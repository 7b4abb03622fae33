// The MFU of attention that plans of causal batches reach, of the tensor cores' peak and of one
// GPU's own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "contextile/planner.h"
#include "contextile/workload.h"

namespace contextile {

// One direction: geometric means over batches, and how far the batches lie apart.
struct GpuShare {
  double time_s = 0;
  double mfu = 0;         // attention's FLOPs over what the tensor cores' peak does in the time
  double mfu_spread = 0;  // standard deviation of the batches' MFUs
  double share = 0;       // of one GPU's MFU: its time over the plan's, 1 is as fast as one GPU
  double limit = 0;       // the share if only the busiest device's attention cost time
};

struct GpuShares {
  GpuShare forward;
  GpuShare backward;              // zeros in a request without backward
  std::vector<double> total_s;    // of every batch, both directions
  double device_bytes = 0;        // both directions, over the number of devices: mean over batches
  std::int64_t memory_bytes = 0;  // most that a device needs for one layer's attention, any batch
  std::string skipped = {};       // why the method does not apply; then nothing is known
};
// Shares of verified plans of causal batches, on the input's cluster. One GPU keeps no
// multiprocessors for transfers.
[[nodiscard]] GpuShares predict_shares(const StrategyChoice& choice, const PlanInput& input,
                                       std::span<const Workload> batches);

}  // namespace contextile
