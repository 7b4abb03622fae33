// An assignment of a grid to any number of devices, with the cost of moving one vertex. GridState
// has more data and is faster, but is limited to 64 devices.
#pragma once

#include <bit>
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
  using NetId = Id<struct PinnedNetTag>;
  // A tile with what it takes to find the change of cost of its moves.
  struct TileOfNets {
    GridVertexId vertex;
    NetId row;
    NetId column;
    std::int64_t weight = 0;
  };

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
  // Returns the same for a tile on `from`, without looking up its nets and its device.
  [[nodiscard]] std::int64_t delta(const TileOfNets& tile, Rank from, Rank to) const {
    return delta(tile.row, from, to) + delta(tile.column, from, to);
  }
  [[nodiscard]] TileOfNets with_nets(GridVertexId tile) const;
  // Returns the same for each of `to`, in their order.
  void find_deltas(GridVertexId v, std::span<const Rank> to,
                   std::vector<std::int64_t>& deltas) const;
  void move(GridVertexId v, Rank to);
  // Returns true if a move of the vertex may lower the cost: it is the only pin of a net on its
  // device.
  [[nodiscard]] bool can_gain(GridVertexId v) const;
  // Calls visit for every device that has pins of the vertex's nets, ascending.
  template <typename Visit>
  void for_each_device(GridVertexId v, const Visit& visit) const;

 private:
  // The pins of a net on 64 consecutive devices, as bits: `any` has the devices with pins, `single`
  // those with only one.
  struct Lanes {
    std::uint64_t any = 0;
    std::uint64_t single = 0;
  };

  [[nodiscard]] bool is_block(GridVertexId v) const { return v.value < num_blocks(); }
  [[nodiscard]] const GridTile& tile(GridVertexId v) const {
    return grid_.tiles[TileId{v.value - num_blocks()}];
  }
  [[nodiscard]] std::int32_t node(Rank device) const { return node_of_[device]; }
  [[nodiscard]] static std::uint64_t bit(Rank device) {
    return std::uint64_t{1} << (static_cast<std::uint32_t>(device.value) % 64);
  }
  [[nodiscard]] Lanes& lanes(NetId net, Rank device) {
    return lanes_[net.index() * num_words_ + device.index() / 64];
  }
  [[nodiscard]] const Lanes& lanes(NetId net, Rank device) const {
    return lanes_[net.index() * num_words_ + device.index() / 64];
  }
  [[nodiscard]] std::int32_t& pins(NetId net, Rank device) {
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
  // Returns the change of the net's cost if a vertex moved. If the vertex is the only one of the
  // device it leaves, that device counts as one without pins.
  [[nodiscard]] std::int64_t delta(NetId net, Rank from, Rank to) const {
    const bool leaves = (lanes(net, from).single & bit(from)) != 0;
    const bool joins = to == from || (lanes(net, to).any & bit(to)) == 0;
    std::int64_t units = static_cast<int>(joins) - static_cast<int>(leaves);
    if (const std::int32_t new_node = node(to); new_node != node(from)) {
      const bool joins_node = reached(net, new_node) == 0;
      const bool leaves_node = leaves && reached(net, node(from)) == 1;
      units += spec_.node_weight * (static_cast<int>(joins_node) - static_cast<int>(leaves_node));
    }
    return bytes_[net] * units;
  }
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
  // the devices of each node that have any. The lanes say what a change of cost needs to know of
  // the pins in a small part of their memory.
  std::vector<std::int32_t> pins_;
  std::vector<std::int32_t> reached_;
  std::vector<Lanes> lanes_;
  std::size_t num_words_;  // lanes of a net
  IdVector<Rank, std::int32_t> node_of_;
};

template <typename Visit>
void PinnedGrid::for_each_net(GridVertexId v, const Visit& visit) const {
  const std::int32_t blocks = num_blocks();
  if (is_block(v)) {
    const auto num_nets = static_cast<std::int32_t>(bytes_.size());
    for (std::int32_t net = v.value; net < num_nets; net += blocks) visit(NetId{net});
    return;
  }
  const GridTile& t = tile(v);
  visit(NetId{t.group.value * blocks + t.row.value});
  visit(NetId{(grid_.head_groups + t.group.value) * blocks + t.column.value});
}

template <typename Visit>
void PinnedGrid::for_each_device(GridVertexId v, const Visit& visit) const {
  for (std::size_t word = 0; word < num_words_; ++word) {
    std::uint64_t left = 0;
    for_each_net(v, [&](NetId net) { left |= lanes_[net.index() * num_words_ + word].any; });
    for (; left != 0; left &= left - 1) {
      visit(Rank{static_cast<std::int32_t>(64 * word) + std::countr_zero(left)});
    }
  }
}

}  // namespace contextile
