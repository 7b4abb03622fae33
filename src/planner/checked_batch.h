// Planning of workloads that somebody has checked already.
#pragma once

#include "contextile/planner.h"

namespace contextile {

// plan_batch of a workload that check_workload has accepted.
[[nodiscard]] PlannedBatch plan_checked_batch(const Workload& workload, const Cluster& cluster,
                                              const StrategyChoice& choice,
                                              const PlanOptions& options);

}  // namespace contextile
