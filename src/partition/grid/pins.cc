#include "partition/grid/pins.h"

namespace contextile {

PinnedGrid::PinnedGrid(const AttentionGrid& grid, const GridSpec& spec, GridPartition& partition)
    : grid_(grid),
      spec_(spec),
      partition_(partition),
      num_nodes_(static_cast<std::size_t>(spec.nodes)),
      num_devices_(num_nodes_ * static_cast<std::size_t>(spec.devices_per_node)),
      num_words_((num_devices_ + 63) / 64) {
  for (const Rank device : IdRange<Rank>(static_cast<std::int32_t>(num_devices_))) {
    node_of_.push_back(device.value / spec.devices_per_node);
  }
  for (const std::int64_t bytes_per_token :
       {grid.row_bytes_per_token, grid.column_bytes_per_token}) {
    for (std::int32_t g = 0; g < grid.head_groups; ++g) {
      for (const GridBlock& block : grid.blocks) bytes_.push_back(block.tokens * bytes_per_token);
    }
  }
  pins_.resize(bytes_.size() * num_devices_);
  reached_.resize(bytes_.size() * num_nodes_);
  lanes_.resize(bytes_.size() * num_words_);
  for (const GridVertexId v : IdRange<GridVertexId>(num_vertices())) {
    for_each_net(v, [&](NetId net) { add_pin(net, device(v)); });
  }
}

std::int64_t PinnedGrid::weight(GridVertexId v) const {
  return is_block(v) ? grid_.blocks[BlockId{v.value}].tokens : tile(v).work;
}

Rank PinnedGrid::device(GridVertexId v) const {
  return is_block(v) ? partition_.owner[BlockId{v.value}]
                     : partition_.device[TileId{v.value - num_blocks()}];
}

std::int64_t PinnedGrid::delta(GridVertexId v, Rank to) const {
  const Rank from = device(v);
  std::int64_t sum = 0;
  for_each_net(v, [&](NetId net) { sum += delta(net, from, to); });
  return sum;
}

PinnedGrid::TileOfNets PinnedGrid::with_nets(GridVertexId v) const {
  TileOfNets found{.vertex = v, .row = {}, .column = {}, .weight = weight(v)};
  for_each_net(v, [&](NetId net) { (found.row.valid() ? found.column : found.row) = net; });
  return found;
}

void PinnedGrid::find_deltas(GridVertexId v, std::span<const Rank> to,
                             std::vector<std::int64_t>& deltas) const {
  const Rank from = device(v);
  const std::int32_t old_node = node(from);
  deltas.assign(to.size(), 0);
  for_each_net(v, [&](NetId net) {
    const Lanes* const of_net = &lanes_[net.index() * num_words_];
    const std::int64_t bytes = bytes_[net];
    const bool leaves = (lanes(net, from).single & bit(from)) != 0;
    const bool leaves_node = leaves && reached(net, old_node) == 1;
    for (std::size_t i = 0; i < to.size(); ++i) {
      const Rank device = to[i];
      const bool joins = device == from || (of_net[device.index() / 64].any & bit(device)) == 0;
      std::int64_t units = static_cast<int>(joins) - static_cast<int>(leaves);
      if (const std::int32_t new_node = node(device); new_node != old_node) {
        const bool joins_node = reached(net, new_node) == 0;
        units += spec_.node_weight * (static_cast<int>(joins_node) - static_cast<int>(leaves_node));
      }
      deltas[i] += bytes * units;
    }
  });
}

void PinnedGrid::move(GridVertexId v, Rank to) {
  for_each_net(v, [&](NetId net) {
    remove_pin(net, device(v));
    add_pin(net, to);
  });
  (is_block(v) ? partition_.owner[BlockId{v.value}]
               : partition_.device[TileId{v.value - num_blocks()}]) = to;
}

bool PinnedGrid::can_gain(GridVertexId v) const {
  const Rank from = device(v);
  bool alone = false;
  for_each_net(v, [&](NetId net) { alone = alone || (lanes(net, from).single & bit(from)) != 0; });
  return alone;
}

void PinnedGrid::add_pin(NetId net, Rank device) {
  Lanes& of_net = lanes(net, device);
  const std::int32_t count = ++pins(net, device);
  if (count == 1) {
    of_net.any |= bit(device);
    of_net.single |= bit(device);
    ++reached(net, node(device));
  } else if (count == 2) {
    of_net.single &= ~bit(device);
  }
}

void PinnedGrid::remove_pin(NetId net, Rank device) {
  Lanes& of_net = lanes(net, device);
  const std::int32_t count = --pins(net, device);
  if (count == 1) {
    of_net.single |= bit(device);
  } else if (count == 0) {
    of_net.any &= ~bit(device);
    of_net.single &= ~bit(device);
    --reached(net, node(device));
  }
}

}  // namespace contextile
