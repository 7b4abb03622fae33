#include "partition/grid/pins.h"

#include <array>

namespace contextile {

PinnedGrid::PinnedGrid(const AttentionGrid& grid, const GridSpec& spec, GridPartition& partition)
    : grid_(grid),
      spec_(spec),
      partition_(partition),
      num_nodes_(static_cast<std::size_t>(spec.nodes)),
      num_devices_(num_nodes_ * static_cast<std::size_t>(spec.devices_per_node)) {
  for (const std::int64_t bytes_per_token :
       {grid.row_bytes_per_token, grid.column_bytes_per_token}) {
    for (std::int32_t g = 0; g < grid.head_groups; ++g) {
      for (const GridBlock& block : grid.blocks) bytes_.push_back(block.tokens * bytes_per_token);
    }
  }
  pins_.resize(bytes_.size() * num_devices_);
  reached_.resize(bytes_.size() * num_nodes_);
  for (const GridVertexId v : IdRange<GridVertexId>(num_vertices())) {
    for_each_net(v, [&](NetId net) { add_pin(net, device(v)); });
  }
}

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

std::int64_t PinnedGrid::weight(GridVertexId v) const {
  return is_block(v) ? grid_.blocks[BlockId{v.value}].tokens : tile(v).work;
}

Rank PinnedGrid::device(GridVertexId v) const {
  return is_block(v) ? partition_.owner[BlockId{v.value}]
                     : partition_.device[TileId{v.value - num_blocks()}];
}

// Calls visit with the change of the net's cost for each of `to`. If the vertex is the only one of
// the device it leaves, that device counts as one without pins.
template <typename Visit>
void PinnedGrid::for_each_delta(NetId net, Rank from, std::span<const Rank> to,
                                const Visit& visit) const {
  const std::int32_t old_node = node(from);
  const bool leaves = pins(net, from) == 1;
  const bool leaves_node = leaves && reached(net, old_node) == 1;
  for (const Rank device : to) {
    const bool joins = device == from || pins(net, device) == 0;
    std::int64_t units = static_cast<int>(joins) - static_cast<int>(leaves);
    if (const std::int32_t new_node = node(device); new_node != old_node) {
      const bool joins_node = reached(net, new_node) == 0;
      units += spec_.node_weight * (static_cast<int>(joins_node) - static_cast<int>(leaves_node));
    }
    visit(bytes_[net] * units);
  }
}

std::int64_t PinnedGrid::delta(GridVertexId v, Rank to) const {
  std::int64_t sum = 0;
  for_each_net(v, [&](NetId net) {
    for_each_delta(net, device(v), std::array{to}, [&](std::int64_t delta) { sum += delta; });
  });
  return sum;
}

void PinnedGrid::find_deltas(GridVertexId v, std::span<const Rank> to,
                             std::vector<std::int64_t>& deltas) const {
  deltas.assign(to.size(), 0);
  for_each_net(v, [&](NetId net) {
    auto sum = deltas.begin();
    for_each_delta(net, device(v), to, [&](std::int64_t delta) { *sum++ += delta; });
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

void PinnedGrid::append_devices(GridVertexId v, std::vector<Rank>& devices) const {
  for_each_net(v, [&](NetId net) {
    for (std::int32_t n = 0; n < spec_.nodes; ++n) {
      if (reached(net, n) == 0) continue;
      for (const Rank of_node : IdRange<Rank>(spec_.devices_per_node)) {
        const Rank device{n * spec_.devices_per_node + of_node.value};
        if (pins(net, device) > 0) devices.push_back(device);
      }
    }
  });
}

void PinnedGrid::add_pin(NetId net, Rank device) {
  if (pins(net, device)++ == 0) ++reached(net, node(device));
}

void PinnedGrid::remove_pin(NetId net, Rank device) {
  if (--pins(net, device) == 0) --reached(net, node(device));
}

}  // namespace contextile
