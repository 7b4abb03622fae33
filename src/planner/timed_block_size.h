// Block sizes chosen by predicted time.
#pragma once

#include "contextile/arrangement.h"
#include "contextile/cluster.h"
#include "contextile/strategy.h"
#include "contextile/workload.h"

namespace contextile {

// strategy.arrange; where the request leaves the block size open, at every size that
// Strategy::block_sizes names, in parallel, of which the one whose plan is predicted fastest on the
// cluster is returned, ties to the earlier. Throws as Strategy::arrange and build_plan do.
[[nodiscard]] Arrangement arrange_timed(const Strategy& strategy, const Workload& workload,
                                        const Cluster& cluster, const StrategyRequest& request);

}  // namespace contextile
