// Block sizes chosen by predicted time.
#pragma once

#include <cstdint>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/extend/strategy.h"
#include "contextile/workload.h"

namespace contextile {

// Sizes other than the best guess are not timed if they would make more tiles. dcp takes 4 s for
// 33,000 tiles of one document, and minutes for the 2 million of its smallest size at 1M tokens.
inline constexpr double kMostTimedTiles = 2e5;

// The sizes of Strategy::block_sizes that are worth timing: the best guess, and those whose tiles
// do not take too long to arrange. Empty: the strategy leaves no size open.
[[nodiscard]] std::vector<std::int64_t> timed_sizes(const Strategy& strategy,
                                                    const Workload& workload,
                                                    const StrategyRequest& request);

// Calls strategy.arrange. If the request leaves the block size open, it arranges every size that
// Strategy::block_sizes names and kMostTimedTiles allows, in parallel, and returns the arrangement
// with the least layers_us, ties to the earlier. Throws as Strategy::arrange and build_plan do.
[[nodiscard]] Arrangement arrange_timed(const Strategy& strategy, const Workload& workload,
                                        const Cluster& cluster, const StrategyRequest& request);

// Time of linear layers in forward passes, with backward, which takes two.
inline constexpr double kPassesWithBackward = 3;

// Time of a token outside attention, in one layer of every mask, both directions, µs.
[[nodiscard]] double linear_layers_us(const Workload& workload, const Cluster& cluster,
                                      const StrategyRequest& request);

// Time of one layer of every mask, µs: attention as simulated, and the linear layers of the device
// that owns most tokens, which the others wait for at the next attention.
[[nodiscard]] double layers_us(const Workload& workload, const Cluster& cluster,
                               const Arrangement& arrangement, const StrategyRequest& request);

}  // namespace contextile
