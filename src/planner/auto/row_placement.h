// Placements of whole rows (partition/rows.h), weighted by the rates of the cluster's ports and
// NICs.
#pragma once

#include <vector>

#include "contextile/cluster.h"
#include "contextile/extend/partition.h"
#include "contextile/workload.h"
#include "partition/grid/rows.h"
#include "planner/auto/placement.h"
#include "strategy/grid_placement.h"

namespace contextile {

struct PlacedRows {
  std::vector<RowPlace> places;
  std::vector<std::int32_t> block_head_groups;  // as in a round
  // Tiles of a row are on the row's device, or on the device of its node for their head group.
  GridPartition partition;
};
// Starts with the sequences in order, or from `warm`. `bytes` are those of one head group.
[[nodiscard]] PlacedRows place_whole_rows(const Workload& workload, const Cluster& cluster,
                                          const PricedTiles& priced, const PlacementChoice& choice,
                                          GridBytes bytes, const PlacingRules& rules,
                                          const RowStart* warm);

}  // namespace contextile
