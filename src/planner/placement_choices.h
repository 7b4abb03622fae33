// Which placements are worth making for a workload.
#pragma once

#include <vector>

#include "contextile/cluster.h"
#include "contextile/strategies.h"
#include "contextile/strategy.h"
#include "contextile/workload.h"
#include "planner/placement.h"

namespace contextile {

// The likeliest first: whole rows, on devices and spread by their heads over nodes, of about four
// and eight blocks a device; then tiles, with several block sizes, head groups and imbalances.
[[nodiscard]] std::vector<PlacementChoice> placement_choices(const Workload& workload,
                                                             const Cluster& cluster,
                                                             const StrategyRequest& request);

// Whether what forward receives is to stay for backward: as asked for, or where that takes little
// of a known memory.
[[nodiscard]] bool decide_retain(const Workload& workload, const Cluster& cluster,
                                 const StrategyRequest& request, RetainInputs asked);

}  // namespace contextile
