// From a workload to the grid that the partitioner places, and back: tiles with their devices, and
// the routes of every unit that a placement moves. Shared by the strategies that partition.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/mask.h"
#include "contextile/partition.h"
#include "contextile/workload.h"
#include "schedule/divisions.h"
#include "schedule/rank_layout.h"

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

// The tiles of mask m where the union's tile went.
[[nodiscard]] std::vector<PlacedTile> placed_tiles(const TileGrid& tiles, std::size_t m,
                                                   std::int32_t head_groups,
                                                   const GridPartition& partition);

enum class Relays : std::uint8_t { kOn, kOff };

// What placed tiles move in one direction.
struct RouteProblem {
  const Blocking* blocks = nullptr;
  const std::vector<Rank>* owners = nullptr;
  const std::vector<PlacedTile>* tiles = nullptr;
  std::int32_t head_groups = 1;
  AttentionShape shape;
  Direction direction = Direction::kForward;
  Relays relays = Relays::kOn;
  std::int64_t inter_weight = 1;  // of a byte across nodes when relays are balanced
  bool retained = false;          // backward: q and kv of forward are still there
};
// Every unit that a device reads or adds to without owning it, relayed across nodes.
[[nodiscard]] std::vector<UnitRoute> routes_of(const RouteProblem& problem, const Cluster& cluster);

}  // namespace contextile
