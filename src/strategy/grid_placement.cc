#include "strategy/grid_placement.h"

#include <cstddef>
#include <map>
#include <utility>

namespace contextile {
TileGrid cut_into_tiles(const Workload& workload, std::int64_t block_size, BandCuts cuts) {
  TileGrid grid;
  grid.work.blocks = cut_sequences(workload, block_size, cuts);
  std::map<std::pair<BlockId, BlockId>, std::int64_t> merged;
  for (const NamedMask& mask : workload.masks) {
    grid.tiles_of_mask.push_back(TileIndex(mask.mask, grid.work.blocks).tiles());
    if (workload.masks.size() == 1) {
      grid.all_tiles = grid.tiles_of_mask.front();
      return grid;
    }
    for (const Tile& tile : grid.tiles_of_mask.back()) {
      merged[{tile.q_block, tile.kv_block}] += tile.pairs * mask.layers;
    }
  }
  for (const auto& [blocks, pairs] : merged) {
    grid.all_tiles.push_back({blocks.first, blocks.second, pairs});
  }
  return grid;
}

AttentionGrid attention_grid(const Workload& workload, const TileGrid& tiles,
                             std::int32_t head_groups, GridBytes bytes,
                             std::span<const std::int64_t> work) {
  AttentionGrid grid;
  grid.head_groups = head_groups;
  grid.row_bytes_per_token = bytes.row;
  grid.column_bytes_per_token = bytes.column;
  std::int32_t sequence = 0;
  const Blocking& blocks = tiles.work.blocks;
  for (std::int32_t b = 0; b < blocks.num_blocks(); ++b) {
    const std::int64_t first = blocks.ranges(BlockId{b}).front().begin;
    while (workload.sequences[static_cast<std::size_t>(sequence)].end <= first) ++sequence;
    grid.blocks.push_back({blocks.num_tokens(BlockId{b}), sequence});
  }
  grid.tiles.reserve(tiles.all_tiles.size() * static_cast<std::size_t>(head_groups));
  for (std::size_t t = 0; t < tiles.all_tiles.size(); ++t) {
    const Tile& tile = tiles.all_tiles[t];
    for (std::int32_t g = 0; g < head_groups; ++g) {
      grid.tiles.push_back({tile.q_block.value, tile.kv_block.value, g, work[t]});
    }
  }
  return grid;
}

std::vector<PlacedTile> placed_tiles(const TileGrid& tiles, std::size_t m, std::int32_t head_groups,
                                     const GridPartition& partition) {
  std::vector<PlacedTile> placed;
  const auto groups = static_cast<std::size_t>(head_groups);
  placed.reserve(tiles.tiles_of_mask[m].size() * groups);
  std::size_t in_union = 0;
  for (const Tile& tile : tiles.tiles_of_mask[m]) {
    while (tiles.all_tiles[in_union].q_block != tile.q_block ||
           tiles.all_tiles[in_union].kv_block != tile.kv_block) {
      ++in_union;
    }
    for (std::size_t g = 0; g < groups; ++g) {
      placed.push_back({tile.q_block, tile.kv_block, GroupId{static_cast<std::int32_t>(g)},
                        Rank{partition.device[in_union * groups + g]}, 0, tile.pairs});
    }
  }
  return placed;
}

void relay_across_nodes(ScheduleProblem& problem, std::int64_t inter_weight) {
  std::vector<MovingUnit> units;
  const UnitRoute* last = nullptr;
  for (const UnitRoute& route : problem.routes) {
    const bool is_of_last = last != nullptr && last->kind == route.kind &&
                            last->block == route.block && last->group == route.group;
    if (!is_of_last) {
      units.push_back({unit_bytes(route.kind, problem.blocks->num_tokens(route.block),
                                  problem.shape, problem.head_groups, problem.shape.dtype),
                       problem.owners[route.block.index()].value,
                       is_result(route.kind),
                       {}});
    }
    units.back().devices.push_back(route.device.value);
    last = &route;
  }
  const std::vector<std::vector<std::int32_t>> vias =
      choose_relays(units, problem.num_devices, problem.devices_per_node, inter_weight);
  std::size_t r = 0;
  for (const std::vector<std::int32_t>& via : vias) {
    for (const std::int32_t device : via) problem.routes[r++].via = Rank{device};
  }
}

}  // namespace contextile
