// An assignment of a grid to any number of devices, with what moving one vertex costs. GridState
// knows more and is faster, but knows 64 devices at most.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/partition.h"

namespace contextile {

using GridVertexId = Id<struct GridVertexTag>;  // the blocks in their order, then the tiles

// Every unit of a block (row or column, one head group) is a net: its pins are the block and the
// tiles that need it. It costs its bytes for every device beyond the first that has a pin, and
// node_weight times as much for every node.
class PinnedGrid {
 public:
  // The partition must fit the grid; both must outlive this, which moves within it.
  PinnedGrid(const AttentionGrid& grid, const GridSpec& spec, GridPartition& partition);

  [[nodiscard]] std::int32_t num_blocks() const {
    return static_cast<std::int32_t>(grid_.blocks.size());
  }
  [[nodiscard]] std::int32_t num_vertices() const {
    return num_blocks() + static_cast<std::int32_t>(grid_.tiles.size());
  }
  // Tokens of a block, work of a tile.
  [[nodiscard]] std::int64_t weight(GridVertexId v) const;
  [[nodiscard]] Rank device(GridVertexId v) const;
  // Change of cost, weighted bytes, if the vertex moved to another device. O(pins of its nets).
  [[nodiscard]] std::int64_t delta(GridVertexId v, Rank to) const;
  void move(GridVertexId v, Rank to);
  // Appends the devices that have pins of the vertex's nets, with repetitions.
  void append_devices(GridVertexId v, std::vector<Rank>& devices) const;

 private:
  struct Pins {
    Rank device;
    std::int32_t count = 0;  // > 0
  };
  using UnitId = Id<struct PinnedUnitTag>;
  struct Net {
    std::int64_t bytes = 0;
    std::vector<Pins> pins;
  };

  [[nodiscard]] bool is_block(GridVertexId v) const { return v.value < num_blocks(); }
  [[nodiscard]] const GridTile& tile(GridVertexId v) const {
    return grid_.tiles[TileId{v.value - num_blocks()}];
  }
  friend class MovePrices;

  [[nodiscard]] std::int32_t node(Rank device) const {
    return device.value / spec_.devices_per_node;
  }
  template <typename Visit>
  void for_each_net(GridVertexId v, const Visit& visit) const;
  [[nodiscard]] std::int64_t delta_of(const Net& net, Rank from, Rank to) const;
  static void add_pin(Net& net, Rank device);
  static void remove_pin(Net& net, Rank device);

  const AttentionGrid& grid_;
  const GridSpec& spec_;
  GridPartition& partition_;
  IdVector<UnitId, Net> nets_;  // rows of group 0, 1, …, then columns, each in the order of blocks
};

// PinnedGrid::delta to many devices at once: nets of hundreds of pins are gone through once.
class MovePrices {
 public:
  // The grid must outlive this.
  explicit MovePrices(const PinnedGrid& grid);

  // delta(v, to) for each of `to`, in their order, until the next call.
  // O(pins of the vertex's nets + nets · devices asked for).
  [[nodiscard]] std::span<const std::int64_t> of(GridVertexId v, std::span<const Rank> to);

 private:
  void add_net(const PinnedGrid::Net& net, Rank from, std::span<const Rank> to);

  const PinnedGrid& grid_;
  std::int64_t net_ = 0;               // counts the nets that were gone through
  IdVector<Rank, std::int64_t> on_;    // of every device: the last net with pins there
  std::vector<std::int64_t> on_node_;  // likewise, of every node
  std::vector<std::int64_t> prices_;
};

}  // namespace contextile
