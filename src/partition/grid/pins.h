// An assignment of a grid to any number of devices, with the cost of moving one vertex. GridState
// has more data and is faster, but is limited to 64 devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/partition.h"

namespace contextile {

using GridVertexId = Id<struct GridVertexTag>;  // the blocks in their order, then the tiles

// Every unit of a block (row or column, one head group) is a net whose pins are the block and the
// tiles that need it. A net costs its bytes for every device beyond the first that has a pin, and
// node_weight times as much for every node beyond the first.
class PinnedGrid {
 public:
  // The partition must fit the grid. Both must outlive this object, which moves vertices in the
  // partition.
  PinnedGrid(const AttentionGrid& grid, const GridSpec& spec, GridPartition& partition);

  [[nodiscard]] std::int32_t num_blocks() const {
    return static_cast<std::int32_t>(grid_.blocks.size());
  }
  [[nodiscard]] std::int32_t num_vertices() const {
    return num_blocks() + static_cast<std::int32_t>(grid_.tiles.size());
  }
  // Returns the tokens of a block, or the work of a tile.
  [[nodiscard]] std::int64_t weight(GridVertexId v) const;
  [[nodiscard]] Rank device(GridVertexId v) const;
  // Returns the change of cost, in weighted bytes, if the vertex moved to another device.
  // O(its nets).
  [[nodiscard]] std::int64_t delta(GridVertexId v, Rank to) const;
  // Returns the same for each of `to`, in their order.
  void find_deltas(GridVertexId v, std::span<const Rank> to,
                   std::vector<std::int64_t>& deltas) const;
  void move(GridVertexId v, Rank to);
  // Appends the devices that have pins of the vertex's nets, with repetitions.
  // O(nodes + devices of the nodes that have pins) per net.
  void append_devices(GridVertexId v, std::vector<Rank>& devices) const;

 private:
  using NetId = Id<struct PinnedNetTag>;

  [[nodiscard]] bool is_block(GridVertexId v) const { return v.value < num_blocks(); }
  [[nodiscard]] const GridTile& tile(GridVertexId v) const {
    return grid_.tiles[TileId{v.value - num_blocks()}];
  }
  [[nodiscard]] std::int32_t node(Rank device) const {
    return device.value / spec_.devices_per_node;
  }
  [[nodiscard]] std::int32_t& pins(NetId net, Rank device) {
    return pins_[net.index() * num_devices_ + device.index()];
  }
  [[nodiscard]] std::int32_t pins(NetId net, Rank device) const {
    return pins_[net.index() * num_devices_ + device.index()];
  }
  [[nodiscard]] std::int32_t& reached(NetId net, std::int32_t node) {
    return reached_[net.index() * num_nodes_ + static_cast<std::size_t>(node)];
  }
  [[nodiscard]] std::int32_t reached(NetId net, std::int32_t node) const {
    return reached_[net.index() * num_nodes_ + static_cast<std::size_t>(node)];
  }
  template <typename Visit>
  void for_each_net(GridVertexId v, const Visit& visit) const;
  template <typename Visit>
  void for_each_delta(NetId net, Rank from, std::span<const Rank> to, const Visit& visit) const;
  void add_pin(NetId net, Rank device);
  void remove_pin(NetId net, Rank device);

  const AttentionGrid& grid_;
  const GridSpec& spec_;
  GridPartition& partition_;
  std::size_t num_nodes_;
  std::size_t num_devices_;
  IdVector<NetId, std::int64_t> bytes_;  // rows of group 0, 1, …, then columns, each in the order
                                         // of blocks
  // Dense tables make the cost of a move a few look-ups: the pins of each net on each device, and
  // the devices of each node that have any.
  std::vector<std::int32_t> pins_;
  std::vector<std::int32_t> reached_;
};

}  // namespace contextile
