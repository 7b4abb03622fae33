#include "strategy/grid_placement.h"

#include <cstddef>
#include <map>
#include <utility>

namespace contextile {
TileGrid cut_into_tiles(const Workload& workload, Blocking blocks) {
  TileGrid grid;
  grid.work.blocks = std::move(blocks);
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
  SequenceId sequence{0};
  const Blocking& blocks = tiles.work.blocks;
  for (const BlockId b : IdRange<BlockId>(blocks.num_blocks())) {
    const std::int64_t first = blocks.ranges(b).front().begin;
    while (workload.sequences[sequence.index()].end <= first) ++sequence.value;
    grid.blocks.push_back({blocks.num_tokens(b), sequence});
  }
  const IdRange<GroupId> groups(head_groups);
  grid.tiles.reserve(tiles.all_tiles.size() * groups.size());
  for (std::size_t t = 0; t < tiles.all_tiles.size(); ++t) {
    const Tile& tile = tiles.all_tiles[t];
    for (const GroupId g : groups) {
      grid.tiles.push_back({tile.q_block, tile.kv_block, g, work[t]});
    }
  }
  return grid;
}

std::vector<PlacedTile> placed_tiles(const TileGrid& tiles, std::size_t m, std::int32_t head_groups,
                                     const GridPartition& partition,
                                     std::span<const std::int32_t> block_head_groups) {
  std::vector<PlacedTile> placed;
  placed.reserve(tiles.tiles_of_mask[m].size() * static_cast<std::size_t>(head_groups));
  std::size_t in_union = 0;
  TileId on_grid{0};  // of the union's tile, group 0
  for (const Tile& tile : tiles.tiles_of_mask[m]) {
    while (tiles.all_tiles[in_union].q_block != tile.q_block ||
           tiles.all_tiles[in_union].kv_block != tile.kv_block) {
      ++in_union;
      on_grid.value += head_groups;
    }
    const std::int32_t groups = head_groups_of(head_groups, block_head_groups, tile.q_block);
    for (const GroupId g : IdRange<GroupId>(groups)) {
      const TileId first{on_grid.value + g.value * (head_groups / groups)};
      const Rank device = partition.device[first];
      placed.push_back({tile.q_block, tile.kv_block, g, device, 0, tile.pairs});
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
      units.push_back({problem.bytes_of(route.kind, route.block, problem.shape.dtype),
                       problem.owners[route.block.index()],
                       is_result(route.kind),
                       {}});
    }
    units.back().devices.push_back(route.device);
    last = &route;
  }
  const std::vector<std::vector<Rank>> vias =
      choose_relays(units, problem.num_devices, problem.devices_per_node, inter_weight);
  std::size_t r = 0;
  for (const std::vector<Rank>& via : vias) {
    for (const Rank device : via) problem.routes[r++].via = device;
  }
}

}  // namespace contextile
