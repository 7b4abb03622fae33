// Block sizes chosen by predicted time.
#pragma once

#include "contextile/arrangement.h"
#include "contextile/cluster.h"
#include "contextile/strategy.h"
#include "contextile/workload.h"

namespace contextile {

// Sizes other than the best guess that would make more tiles are not timed: dcp takes 4 s for 33
// 000 tiles of one document, and minutes for the 2 million of its smallest size at 1M tokens.
inline constexpr double kMostTimedTiles = 2e5;

// strategy.arrange; where the request leaves the block size open, at every size that
// Strategy::block_sizes names and kMostTimedTiles allows, in parallel, of which the one with the
// least layers_us is returned, ties to the earlier. Throws as Strategy::arrange and build_plan do.
[[nodiscard]] Arrangement arrange_timed(const Strategy& strategy, const Workload& workload,
                                        const Cluster& cluster, const StrategyRequest& request);

// What one layer of every mask takes, µs: attention as simulated, and the linear layers of the
// device that owns most tokens, which the others wait for at the next attention. Backward, if there
// is any, takes them twice as long.
[[nodiscard]] double layers_us(const Workload& workload, const Cluster& cluster,
                               const Arrangement& arrangement, const StrategyRequest& request);

}  // namespace contextile
