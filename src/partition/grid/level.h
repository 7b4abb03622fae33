// One level of the multilevel hierarchy: a (coarsened) grid with its nets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/partition.h"

namespace contextile {

using GridNetId = Id<struct GridNetTag>;  // units of one block, side (row or column) and head group
using PinId = Id<struct GridPinTag>;      // place of a tile in a net's list, over all nets

// A net has the tiles of one row (for units of queries) or of one column (for units of keys).
enum class Side : std::uint8_t { kRow, kColumn };

[[nodiscard]] constexpr Side other_side(Side side) {
  return side == Side::kRow ? Side::kColumn : Side::kRow;
}

// The nets of one block, for every side and group: ids that are num_blocks apart.
class BlockNets {
 public:
  class Iterator {
   public:
    constexpr Iterator(std::int32_t value, std::int32_t step) : value_(value), step_(step) {}
    constexpr GridNetId operator*() const { return GridNetId{value_}; }
    constexpr Iterator& operator++() {
      value_ += step_;
      return *this;
    }
    friend constexpr bool operator==(const Iterator& a, const Iterator& b) {
      return a.value_ == b.value_;
    }

   private:
    std::int32_t value_;
    std::int32_t step_;
  };

  constexpr BlockNets(BlockId block, std::int32_t num_blocks, std::int32_t num_nets)
      : first_(block.value), step_(num_blocks), last_(block.value + num_nets) {}

  [[nodiscard]] constexpr Iterator begin() const { return {first_, step_}; }
  [[nodiscard]] constexpr Iterator end() const { return {last_, step_}; }

 private:
  std::int32_t first_;
  std::int32_t step_;
  std::int32_t last_;
};

// The row net of (group g, block b) has id g·B + b, the column net G·B + g·B + b. A net costs its
// bytes for every device that it spans in addition to its owner.
struct GridLevel {
  struct LevelBlock {
    std::int64_t tokens = 0;       // for the bytes of its nets
    std::int64_t held_tokens = 0;  // held by its owner; 0 if the owner is outside this grid
    SequenceId sequence{0};
  };
  struct LevelTile {
    BlockId row{0};
    BlockId column{0};
    GroupId group{0};
    GridNetId row_net{0};
    GridNetId column_net{0};
    std::int64_t work = 0;

    [[nodiscard]] BlockId block(Side side) const { return side == Side::kRow ? row : column; }
    [[nodiscard]] GridNetId net(Side side) const {
      return side == Side::kRow ? row_net : column_net;
    }
  };

  std::int32_t num_groups = 1;
  std::int64_t row_bytes_per_token = 0;
  std::int64_t column_bytes_per_token = 0;
  IdVector<BlockId, LevelBlock> blocks;
  IdVector<TileId, LevelTile> tiles;
  IdVector<GridNetId, std::int64_t> net_bytes;
  IdVector<GridNetId, PinId> first_pin;     // of every net and, last, the end of all pins
  IdVector<PinId, TileId> net_tiles;        // the tiles of every net, in their order
  IdVector<TileId, PinId> row_pin;          // the pin of a tile in its row net
  IdVector<TileId, PinId> column_pin;       // and in its column net
  IdVector<BlockId, BlockId> coarse_block;  // of every block of the finer level
  IdVector<TileId, TileId> coarse_tile;
  std::int64_t total_work = 0;
  std::int64_t total_held_tokens = 0;

  [[nodiscard]] std::int32_t num_blocks() const { return static_cast<std::int32_t>(blocks.size()); }
  [[nodiscard]] std::int32_t num_tiles() const { return static_cast<std::int32_t>(tiles.size()); }
  [[nodiscard]] std::int32_t num_nets() const {
    return static_cast<std::int32_t>(net_bytes.size());
  }
  [[nodiscard]] std::int32_t num_sequences() const {
    return blocks.empty() ? 0 : blocks.back().sequence.value + 1;
  }
  [[nodiscard]] IdRange<GroupId> groups() const { return IdRange<GroupId>(num_groups); }
  [[nodiscard]] IdRange<GridNetId> nets() const { return net_bytes.ids(); }
  [[nodiscard]] GridNetId net(Side side, GroupId group, BlockId block) const {
    const std::int32_t first_group = side == Side::kRow ? 0 : num_groups;
    return GridNetId{(first_group + group.value) * num_blocks() + block.value};
  }
  [[nodiscard]] BlockNets nets_of(BlockId block) const { return {block, num_blocks(), num_nets()}; }
  [[nodiscard]] BlockId block_of_net(GridNetId net) const {
    return BlockId{net.value % num_blocks()};
  }
  [[nodiscard]] Side side_of_net(GridNetId net) const {
    return net.value < num_groups * num_blocks() ? Side::kRow : Side::kColumn;
  }
  [[nodiscard]] PinId pins_begin(GridNetId net) const { return first_pin[net]; }
  [[nodiscard]] PinId pins_end(GridNetId net) const { return first_pin[GridNetId{net.value + 1}]; }
  [[nodiscard]] std::span<const TileId> tiles_of(GridNetId net) const {
    return {net_tiles.data() + pins_begin(net).index(), net_tiles.data() + pins_end(net).index()};
  }
  // Returns the sum over tiles of work · row bytes / work: the typical cost of one more device in a
  // row.
  [[nodiscard]] double mean_row_bytes() const;
};

[[nodiscard]] GridLevel finest_level(const AttentionGrid& grid);

// A part of a grid as a grid of its own: the tiles with keep[tile], and every block that they touch
// or that has held[block]. The owners of other blocks are outside; their owner here is the device
// that receives them first.
struct SubGrid {
  GridLevel level;
  IdVector<BlockId, BlockId> block_of;  // of every block, its id in the whole grid
  IdVector<TileId, TileId> tile_of;
};
[[nodiscard]] SubGrid sub_grid(const GridLevel& whole, const IdVector<TileId, bool>& keep,
                               const IdVector<BlockId, bool>& held);

// Merges pairs of adjacent blocks of every sequence with merge[sequence].
[[nodiscard]] GridLevel coarsen(const GridLevel& fine, const IdVector<SequenceId, bool>& merge);

// Returns the levels from fine to coarse. A sequence is coarsened while its coarse tiles stay below
// `tile_share` of a device's mean work and its blocks below `max_block_tokens`.
[[nodiscard]] std::vector<GridLevel> coarsen_all(GridLevel finest, double mean_work,
                                                 double tile_share, std::int64_t max_block_tokens);

}  // namespace contextile
