// Arranges chunks with their ranks: group-casts of keys, group-reduces of their gradients.
#pragma once

#include <span>

#include "contextile/base.h"
#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/extend/strategies.h"
#include "contextile/workload.h"

namespace contextile {

// Arranges chunks whose ranks are `workers`. The caller fills in strategy, options and wire.
[[nodiscard]] Arrangement arrange_chunks(const Workload& workload, const Cluster& cluster,
                                         std::span<const Range> chunks,
                                         std::span<const Rank> workers, const MagiOptions& options,
                                         bool backward);

}  // namespace contextile
