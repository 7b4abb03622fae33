// Conversion from a workload to the grid that the partitioner places, and back to tiles with their
// devices and relays for the units they move. All strategies that partition share it.
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
  WorkBlocks work;  // the partition decides the workers
  std::vector<std::vector<Tile>> tiles_of_mask;
  std::vector<Tile> all_tiles;  // union, pairs weighted by layers
};
[[nodiscard]] TileGrid cut_into_tiles(const Workload& workload, Blocking blocks);

// Bytes per token that move to another device and back for one head group of a row or a column.
struct GridBytes {
  std::int64_t row = 0;
  std::int64_t column = 0;
};
// Returns a grid with every tile once per head group. `work`, > 0, is that of tiles.all_tiles in
// one group.
[[nodiscard]] AttentionGrid attention_grid(const Workload& workload, const TileGrid& tiles,
                                           std::int32_t head_groups, GridBytes bytes,
                                           std::span<const std::int64_t> work);

// Returns the tiles of mask m on the devices of the union's tiles. In blocks with head groups of
// their own (`block_head_groups`, as in a round), group g goes where the first of the grid's groups
// in it went.
[[nodiscard]] std::vector<PlacedTile> placed_tiles(
    const TileGrid& tiles, std::size_t m, std::int32_t head_groups, const GridPartition& partition,
    std::span<const std::int32_t> block_head_groups = {});

// Lets one device of a node fetch a unit from another node and pass it on to the others there (and
// gather a result before it crosses). This runs choose_relays on the problem's routes, where a byte
// across nodes counts `inter_weight` times.
void relay_across_nodes(ScheduleProblem& problem, std::int64_t inter_weight = 1);

}  // namespace contextile
