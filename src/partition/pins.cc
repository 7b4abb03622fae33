#include "partition/pins.h"

#include <algorithm>

namespace contextile {

PinnedGrid::PinnedGrid(const AttentionGrid& grid, const GridSpec& spec, GridPartition& partition)
    : grid_(grid), spec_(spec), partition_(partition) {
  for (const std::int64_t bytes_per_token :
       {grid.row_bytes_per_token, grid.column_bytes_per_token}) {
    for (std::int32_t g = 0; g < grid.head_groups; ++g) {
      for (const GridBlock& block : grid.blocks) {
        nets_.push_back({block.tokens * bytes_per_token, {}});
      }
    }
  }
  for (const GridVertexId v : IdRange<GridVertexId>(num_vertices())) {
    for_each_net(v, [&](UnitId net) { add_pin(nets_[net], device(v)); });
  }
}

template <typename Visit>
void PinnedGrid::for_each_net(GridVertexId v, const Visit& visit) const {
  const std::int32_t blocks = num_blocks();
  if (is_block(v)) {
    const auto num_nets = static_cast<std::int32_t>(nets_.size());
    for (std::int32_t net = v.value; net < num_nets; net += blocks) visit(UnitId{net});
    return;
  }
  const GridTile& t = tile(v);
  visit(UnitId{t.group.value * blocks + t.row.value});
  visit(UnitId{(grid_.head_groups + t.group.value) * blocks + t.column.value});
}

std::int64_t PinnedGrid::weight(GridVertexId v) const {
  return is_block(v) ? grid_.blocks[BlockId{v.value}].tokens : tile(v).work;
}

Rank PinnedGrid::device(GridVertexId v) const {
  return is_block(v) ? partition_.owner[BlockId{v.value}]
                     : partition_.device[TileId{v.value - num_blocks()}];
}

std::int64_t PinnedGrid::delta(GridVertexId v, Rank to) const {
  std::int64_t sum = 0;
  for_each_net(v, [&](UnitId net) { sum += delta_of(nets_[net], device(v), to); });
  return sum;
}

std::int64_t PinnedGrid::delta_of(const Net& net, Rank from, Rank to) const {
  bool leaves = false;
  bool joins = true;
  bool leaves_node = true;
  bool joins_node = true;
  for (const Pins& pins : net.pins) {
    if (pins.device == from) {
      leaves = pins.count == 1;
      continue;
    }
    if (pins.device == to) joins = false;
    if (node(pins.device) == node(from)) leaves_node = false;
    if (node(pins.device) == node(to)) joins_node = false;
  }
  const std::int64_t devices = static_cast<int>(joins) - static_cast<int>(leaves);
  if (node(from) == node(to)) return net.bytes * devices;
  const std::int64_t nodes = static_cast<int>(joins_node) - static_cast<int>(leaves && leaves_node);
  return net.bytes * (devices + spec_.node_weight * nodes);
}

void PinnedGrid::move(GridVertexId v, Rank to) {
  for_each_net(v, [&](UnitId net) {
    remove_pin(nets_[net], device(v));
    add_pin(nets_[net], to);
  });
  (is_block(v) ? partition_.owner[BlockId{v.value}]
               : partition_.device[TileId{v.value - num_blocks()}]) = to;
}

void PinnedGrid::append_devices(GridVertexId v, std::vector<Rank>& devices) const {
  for_each_net(v, [&](UnitId net) {
    for (const Pins& pins : nets_[net].pins) devices.push_back(pins.device);
  });
}

void PinnedGrid::add_pin(Net& net, Rank device) {
  const auto at = std::ranges::find(net.pins, device, &Pins::device);
  if (at == net.pins.end()) {
    net.pins.push_back({device, 1});
  } else {
    ++at->count;
  }
}

void PinnedGrid::remove_pin(Net& net, Rank device) {
  const auto at = std::ranges::find(net.pins, device, &Pins::device);
  if (--at->count > 0) return;
  *at = net.pins.back();
  net.pins.pop_back();
}

// ------------------------------------------------------------------------------------- prices

MovePrices::MovePrices(const PinnedGrid& grid)
    : grid_(grid),
      on_(IdRange<Rank>(grid.spec_.nodes * grid.spec_.devices_per_node)),
      on_node_(static_cast<std::size_t>(grid.spec_.nodes)) {}

std::span<const std::int64_t> MovePrices::of(GridVertexId v, std::span<const Rank> to) {
  prices_.assign(to.size(), 0);
  const Rank from = grid_.device(v);
  grid_.for_each_net(v, [&](PinnedGrid::UnitId net) { add_net(grid_.nets_[net], from, to); });
  return prices_;
}

// As delta_of: the device the vertex leaves counts as one without pins.
void MovePrices::add_net(const PinnedGrid::Net& net, Rank from, std::span<const Rank> to) {
  ++net_;
  const auto last_on_node = [this](Rank device) -> std::int64_t& {
    return on_node_[static_cast<std::size_t>(grid_.node(device))];
  };
  bool leaves = false;
  for (const PinnedGrid::Pins& pins : net.pins) {
    if (pins.device == from) {
      leaves = pins.count == 1;
      continue;
    }
    on_[pins.device] = net_;
    last_on_node(pins.device) = net_;
  }
  const std::int64_t left = leaves ? 1 : 0;
  const std::int64_t left_nodes = leaves && last_on_node(from) != net_ ? 1 : 0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    std::int64_t units = (on_[to[i]] == net_ ? 0 : 1) - left;
    if (grid_.node(to[i]) != grid_.node(from)) {
      const std::int64_t joined_nodes = last_on_node(to[i]) == net_ ? 0 : 1;
      units += grid_.spec_.node_weight * (joined_nodes - left_nodes);
    }
    prices_[i] += net.bytes * units;
  }
}

}  // namespace contextile
