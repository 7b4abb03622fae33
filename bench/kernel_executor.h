// Plans as the executor runs them: their rate, and the executor's time in addition to its kernel.
#pragma once

#include <cstdint>
#include <memory>

#include "contextile/extend/kernel.h"
#include "contextile/plan.h"
#include "kernel_peaks.h"

namespace contextile {

// FLOP/s and their share of the peak.
struct Rate {
  double flops_per_s = 0;
  double share = 0;
};

struct PlanRate {
  Rate forward;
  Rate backward;
};

// Every rank's CPU time in its own thread, and FLOPs of all ranks over the sum of their times.
[[nodiscard]] PlanRate measure_plan(const std::shared_ptr<const Plan>& plan,
                                    const AttentionKernel& kernel, Peak peak, int repeats,
                                    double flops);

// Verifies (exit 1 if an error is out of bounds) and prints the CPU time of a call inside the
// kernel, inside the transport, and the rest: the executor's own. It runs 4K tokens per rank of 8/2
// heads of 128 on 1 and 2 ranks.
void print_executor_shares(const AttentionKernel& kernel, Dtype dtype, int repeats);

}  // namespace contextile
