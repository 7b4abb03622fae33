#include "strategy/grid_placement.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

namespace contextile {
namespace {

// Units of one kind that travel, with the devices they travel to or from.
class UnitCollector {
 public:
  UnitCollector(const RouteProblem& problem, Kind kind)
      : problem_(problem),
        kind_(kind),
        groups_(static_cast<std::size_t>(problem.head_groups)),
        devices_(problem.owners->size() * groups_) {
    for (const PlacedTile& tile : *problem.tiles) {
      const BlockId block = is_of_kv(kind) ? tile.kv_block : tile.q_block;
      if ((*problem.owners)[block.index()] != tile.device) {
        devices_[block.index() * groups_ + tile.group.index()].push_back(tile.device.value);
      }
    }
  }

  // Routes whose `via` is still the owner, and the units as choose_relays wants them.
  void append(std::vector<UnitRoute>& routes, std::vector<MovingUnit>& units) {
    for (std::size_t u = 0; u < devices_.size(); ++u) {
      std::vector<std::int32_t>& devices = devices_[u];
      std::sort(devices.begin(), devices.end());
      devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
      if (devices.empty()) continue;
      const BlockId block{static_cast<std::int32_t>(u / groups_)};
      const GroupId group{static_cast<std::int32_t>(u % groups_)};
      const Rank owner = (*problem_.owners)[block.index()];
      for (const std::int32_t device : devices) {
        routes.push_back({kind_, block, group, Rank{device}, owner});
      }
      units.push_back({unit_bytes(kind_, problem_.blocks->num_tokens(block), problem_.shape,
                                  problem_.head_groups, problem_.shape.dtype),
                       owner.value, is_result(kind_), std::move(devices)});
    }
  }

 private:
  const RouteProblem& problem_;
  Kind kind_;
  std::size_t groups_;
  std::vector<std::vector<std::int32_t>> devices_;  // of every unit
};

}  // namespace

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

std::vector<UnitRoute> routes_of(const RouteProblem& problem, const Cluster& cluster) {
  std::vector<UnitRoute> routes;
  std::vector<MovingUnit> units;
  for (int k = 0; k < kNumKinds; ++k) {
    const auto kind = static_cast<Kind>(k);
    if (!occurs_in(kind, problem.direction)) continue;
    if (problem.retained && problem.direction == Direction::kBackward &&
        (kind == Kind::kQ || kind == Kind::kKv))
      continue;
    UnitCollector(problem, kind).append(routes, units);
  }
  if (problem.relays == Relays::kOff) return routes;
  const std::vector<std::vector<std::int32_t>> vias =
      choose_relays(units, cluster.num_devices(), cluster.devices_per_node, problem.inter_weight);
  std::size_t r = 0;
  for (const std::vector<std::int32_t>& via : vias) {
    for (const std::int32_t device : via) routes[r++].via = Rank{device};
  }
  return routes;
}

}  // namespace contextile
