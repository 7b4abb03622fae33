// One level of the multilevel hierarchy: a (coarsened) grid with its nets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/partition.h"

namespace contextile {

// Row net of (group g, block b): g·B + b. Column net: G·B + g·B + b. A net costs bytes for every
// device it spans beside its owner.
struct GridLevel {
  struct LevelBlock {
    std::int64_t tokens = 0;       // what its nets move
    std::int64_t held_tokens = 0;  // what its owner holds; 0 if that is somebody outside this grid
    std::int32_t sequence = 0;
  };
  struct LevelTile {
    std::int32_t row = 0;
    std::int32_t column = 0;
    std::int32_t group = 0;
    std::int32_t row_net = 0;
    std::int32_t column_net = 0;
    std::int64_t work = 0;
  };

  std::int32_t num_groups = 1;
  std::int64_t row_bytes_per_token = 0;
  std::int64_t column_bytes_per_token = 0;
  std::vector<LevelBlock> blocks;
  std::vector<LevelTile> tiles;
  std::vector<std::int64_t> net_bytes;
  std::vector<std::int32_t> first_tile;  // of every net, into net_tiles; size nets + 1
  std::vector<std::int32_t> net_tiles;
  std::vector<std::int32_t> row_slot;      // of every tile: where its row net lists it in net_tiles
  std::vector<std::int32_t> column_slot;   // and its column net
  std::vector<std::int32_t> coarse_block;  // of every block of the finer level
  std::vector<std::int32_t> coarse_tile;
  std::int64_t total_work = 0;
  std::int64_t total_held_tokens = 0;

  [[nodiscard]] std::int32_t num_blocks() const { return static_cast<std::int32_t>(blocks.size()); }
  [[nodiscard]] std::int32_t num_tiles() const { return static_cast<std::int32_t>(tiles.size()); }
  [[nodiscard]] std::int32_t num_nets() const {
    return static_cast<std::int32_t>(net_bytes.size());
  }
  [[nodiscard]] std::int32_t num_sequences() const {
    return blocks.empty() ? 0 : blocks.back().sequence + 1;
  }
  [[nodiscard]] std::int32_t block_of_net(std::int32_t net) const { return net % num_blocks(); }
  [[nodiscard]] bool is_row_net(std::int32_t net) const { return net < num_groups * num_blocks(); }
  [[nodiscard]] std::span<const std::int32_t> tiles_of(std::int32_t net) const {
    const auto first = static_cast<std::size_t>(first_tile[static_cast<std::size_t>(net)]);
    const auto last = static_cast<std::size_t>(first_tile[static_cast<std::size_t>(net) + 1]);
    return {net_tiles.data() + first, last - first};
  }
  // Sum over tiles of work · row bytes / work: the typical cost of one more device in a row.
  [[nodiscard]] double mean_row_bytes() const;
};

[[nodiscard]] GridLevel finest_level(const AttentionGrid& grid);

// Part of a grid as a grid of its own: the tiles with keep[tile], and every block they touch or
// that held[block]. Blocks not held belong to somebody outside; their owner here is the device that
// receives them first.
struct SubGrid {
  GridLevel level;
  std::vector<std::int32_t> block_of;  // of every block, its index in the whole grid
  std::vector<std::int32_t> tile_of;
};
[[nodiscard]] SubGrid sub_grid(const GridLevel& whole, const std::vector<bool>& keep,
                               const std::vector<bool>& held);

// Merges pairs of adjacent blocks of every sequence with merge[sequence].
[[nodiscard]] GridLevel coarsen(const GridLevel& fine, const std::vector<bool>& merge);

// Levels from fine to coarse. A sequence is coarsened while its coarse tiles stay below
// `tile_share` of a device's mean work and its blocks below `max_block_tokens`.
[[nodiscard]] std::vector<GridLevel> coarsen_all(GridLevel finest, double mean_work,
                                                 double tile_share, std::int64_t max_block_tokens);

}  // namespace contextile
