// Lower bounds of workloads that have been checked already.
#pragma once

#include "contextile/bounds.h"

namespace contextile {

// lower_bound of a workload that check_workload has accepted.
[[nodiscard]] TimeBound lower_bound_of_checked(const Workload& workload, const Cluster& cluster,
                                               Direction direction, const BoundOptions& options);

}  // namespace contextile
