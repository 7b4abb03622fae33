// The placements that are worth making for a workload.
#pragma once

#include <cstdint>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/extend/strategies.h"
#include "contextile/extend/strategy.h"
#include "contextile/workload.h"
#include "planner/auto/placement.h"

namespace contextile {

// Number of blocks that documents are cut into. Every document and every home begins a block.
[[nodiscard]] std::int64_t num_blocks(const Workload& workload, std::int64_t block_size);
// The tiles to expect of one head group in such blocks.
[[nodiscard]] std::int64_t likely_tiles(const Workload& workload, std::int64_t block_size);

// Steps of placing (search_budget.h): rows with the choice's effort, tiles with full effort.
[[nodiscard]] std::int64_t steps_of_rows(const Workload& workload, const PlacementChoice& choice);
[[nodiscard]] std::int64_t steps_of_tiles(const Workload& workload, const Cluster& cluster,
                                          const PlacementChoice& choice);
// The tiles of all head groups if every document is split into those of the choice.
[[nodiscard]] std::int64_t most_tiles(const Workload& workload, const PlacementChoice& choice);

// Whole rows, on devices and spread by their heads over nodes, likeliest first. The quick choices
// are one of each kind with few steps.
[[nodiscard]] std::vector<PlacementChoice> quick_row_choices(const Workload& workload,
                                                             const Cluster& cluster,
                                                             const StrategyRequest& request);
// Whole rows at several block sizes and seeds.
[[nodiscard]] std::vector<PlacementChoice> row_choices(const Workload& workload,
                                                       const Cluster& cluster,
                                                       const StrategyRequest& request,
                                                       double effort);
// Whole rows at several block sizes, on devices with more work than the mean. The quick choices are
// the likeliest with few steps.
[[nodiscard]] std::vector<PlacementChoice> quick_uneven_row_choices(const Workload& workload,
                                                                    const Cluster& cluster,
                                                                    const StrategyRequest& request);
[[nodiscard]] std::vector<PlacementChoice> uneven_row_choices(const Workload& workload,
                                                              const Cluster& cluster,
                                                              const StrategyRequest& request,
                                                              double effort);
// Tiles, with several block sizes and head groups, devices within `eps` of the mean work.
[[nodiscard]] std::vector<PlacementChoice> tile_choices(const Workload& workload,
                                                        const Cluster& cluster,
                                                        const StrategyRequest& request, double eps);

// Tiles for few steps, with blocks as small and head groups as many as those allow. There are
// several of them, because the quality of such a placement is much a matter of luck.
[[nodiscard]] std::vector<PlacementChoice> quick_tile_choices(const Workload& workload,
                                                              const Cluster& cluster,
                                                              const StrategyRequest& request,
                                                              int turns);

// True if the data that forward receives shall stay for backward: if requested, or if it takes
// little of a known memory.
[[nodiscard]] bool decide_retain(const Workload& workload, const Cluster& cluster,
                                 const StrategyRequest& request, RetainInputs asked);

}  // namespace contextile
