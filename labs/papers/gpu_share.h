// The share of one GPU's MFU that plans of causal batches reach.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "contextile/planner.h"
#include "contextile/workload.h"

namespace contextile {

// One direction's geometric means over batches. A share of 1 is as fast as one GPU alone.
struct GpuShare {
  double time_s = 0;
  double share = 0;  // of one GPU's MFU: its time over the plan's
  double limit = 0;  // the share if only the busiest device's attention cost time
};

struct GpuShares {
  GpuShare forward;
  GpuShare backward;         // zeros in a request without backward
  double device_bytes = 0;   // both directions, over the number of devices: mean over batches
  std::string skipped = {};  // why the method does not apply; then nothing is known
};
// Shares of verified plans of causal batches. The plans are made for the input's cluster and
// simulated on each of `machines`; one result for each.
[[nodiscard]] std::vector<GpuShares> predict_shares(const StrategyChoice& choice,
                                                    const PlanInput& input,
                                                    std::span<const Workload> batches,
                                                    std::span<const Cluster> machines);

}  // namespace contextile
