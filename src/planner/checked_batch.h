// Planning of workloads that have been checked already.
#pragma once

#include "contextile/planner.h"

namespace contextile {

// plan_batch of a workload that check_workload has accepted.
[[nodiscard]] PlannedBatch plan_checked_batch(const Workload& workload, const Cluster& cluster,
                                              const StrategyChoice& choice,
                                              const PlanOptions& options);

}  // namespace contextile
