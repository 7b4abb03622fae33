// From a workload to the grid that the partitioner places, and back: tiles with their devices, and
// relays for what they move. Shared by the strategies that partition.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/extend/partition.h"
#include "contextile/mask.h"
#include "contextile/workload.h"
#include "strategy/schedule/placed_tiles.h"
#include "strategy/schedule/rank_layout.h"

namespace contextile {

// The tiles of all masks on one blocking.
struct TileGrid {
  WorkBlocks work;  // workers are decided by the partition
  std::vector<std::vector<Tile>> tiles_of_mask;
  std::vector<Tile> all_tiles;  // union, pairs weighted by layers
};
[[nodiscard]] TileGrid cut_into_tiles(const Workload& workload, std::int64_t block_size,
                                      BandCuts cuts);

// Bytes per token that one head group of a row or a column moves to another device and back.
struct GridBytes {
  std::int64_t row = 0;
  std::int64_t column = 0;
};
// Every tile once per head group; `work`, > 0, is that of tiles.all_tiles in one group.
[[nodiscard]] AttentionGrid attention_grid(const Workload& workload, const TileGrid& tiles,
                                           std::int32_t head_groups, GridBytes bytes,
                                           std::span<const std::int64_t> work);

// The tiles of mask m where the union's tile went. Of blocks with head groups of their own
// (`block_head_groups`, as in a round) group g goes where the first of its part of all groups went.
[[nodiscard]] std::vector<PlacedTile> placed_tiles(
    const TileGrid& tiles, std::size_t m, std::int32_t head_groups, const GridPartition& partition,
    std::span<const std::int32_t> block_head_groups = {});

// Lets one device of a node fetch a unit from another node and pass it on to those beside it (and
// gather a result before it crosses): choose_relays on the problem's routes, a byte across nodes
// counting `inter_weight` times.
void relay_across_nodes(ScheduleProblem& problem, std::int64_t inter_weight = 1);

}  // namespace contextile
