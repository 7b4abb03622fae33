#include "partition/grid/state.h"

#include <algorithm>
#include <bit>

namespace contextile {
namespace {

std::int32_t width_for(std::int32_t devices_per_node) {
  return static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint32_t>(devices_per_node)));
}

}  // namespace

LaneLayout::LaneLayout(std::int32_t num_nodes, std::int32_t per_node)
    : nodes(num_nodes), devices_per_node(per_node), width(width_for(per_node)) {
  for (const NodeId n : node_ids()) node_firsts_ |= lane_bit(lane(n, 0));
}

bool LaneLayout::fits(std::int32_t nodes, std::int32_t devices_per_node) {
  return devices_per_node <= kMaxLanes && nodes <= kMaxLanes / width_for(devices_per_node);
}

GridState::GridState(const GridLevel& grid, const LaneLayout& lane_layout,
                     const GridLimits& grid_limits)
    : level(&grid),
      layout(lane_layout),
      limits(grid_limits),
      place(grid.tiles.ids()),
      owner(grid.blocks.ids()),
      num_lanes_(lane_layout.lanes().size()),
      mean_tokens_(
          std::max(1.0, static_cast<double>(grid.total_held_tokens) / lane_layout.num_devices())) {
  for (const NodeId n : layout.node_ids()) {
    devices_ |= layout.node_lanes(n);
    node_firsts_ |= lane_bit(layout.lane(n, 0));
  }
  share_.assign(layout.lanes(), 1.0);
  for (const Lane lane : limits.share.ids()) share_[lane] = limits.share[lane];
  for (const double share : share_) {
    token_cap_.push_back(static_cast<std::int64_t>(share * static_cast<double>(limits.token_cap)));
  }
}

void GridState::rebuild() {
  const GridLevel& grid = *level;
  count_.assign(grid.nets().size() * num_lanes_, 0);
  span_.assign(grid.nets(), 0);
  load.assign(layout.lanes(), 0);
  tokens.assign(layout.lanes(), 0);
  node_load.assign(layout.node_ids(), 0);
  node_tokens.assign(layout.node_ids(), 0);
  listed_place_.resize(grid.net_tiles.ids());
  for (const TileId t : grid.tiles.ids()) {
    list_place(t, place[t]);
    const GridLevel::LevelTile& tile = grid.tiles[t];
    for (const GridNetId net : {tile.row_net, tile.column_net}) {
      ++count_[count_index(net, place[t])];
      span_[net] |= lane_bit(place[t]);
    }
    load[place[t]] += tile.work;
  }
  for (const BlockId b : grid.blocks.ids()) tokens[owner[b]] += grid.blocks[b].held_tokens;
  for (const Lane lane : layout.lanes()) {
    node_load[layout.node(lane)] += load[lane];
    node_tokens[layout.node(lane)] += tokens[lane];
  }
  cost = 0;
  for (const GridNetId net : grid.nets()) {
    LaneMask& mask = span_[net];
    mask |= lane_bit(owner[grid.block_of_net(net)]);
    cost += grid.net_bytes[net] * (weight_of(mask) - 1 - limits.node_weight);
  }
  set_traffic_weight(traffic_weight_);
}

std::int64_t GridState::tile_delta(TileId t, Lane to) const {
  const GridLevel::LevelTile& tile = level->tiles[t];
  const Lane from = place[t];
  std::int64_t delta = 0;
  for (const auto& [net, block] :
       {std::pair(tile.row_net, tile.row), {tile.column_net, tile.column}}) {
    const LaneMask before = span(net);
    const LaneMask after = span_after(net, block, from, to);
    if (after != before) {
      delta += level->net_bytes[net] * (weight_of(after) - weight_of(before));
    }
  }
  return delta;
}

void GridState::move_tile(TileId t, Lane to) {
  const GridLevel::LevelTile& tile = level->tiles[t];
  const Lane from = place[t];
  for (const auto& [net, block] :
       {std::pair(tile.row_net, tile.row), {tile.column_net, tile.column}}) {
    const Lane owner_lane = owner[block];
    change_span(net, span_after(net, block, from, to), owner_lane, owner_lane);
    --count_[count_index(net, from)];
    ++count_[count_index(net, to)];
  }
  load[from] -= tile.work;
  load[to] += tile.work;
  node_load[layout.node(from)] -= tile.work;
  node_load[layout.node(to)] += tile.work;
  place[t] = PackedLane(to);
  list_place(t, PackedLane(to));
}

std::int64_t GridState::owner_delta(BlockId block, Lane to) const {
  const Lane from = owner[block];
  std::int64_t delta = 0;
  for (const GridNetId net : level->nets_of(block)) {
    const LaneMask before = span(net);
    LaneMask after = before;
    if (count(net, from) == 0) after &= ~lane_bit(from);
    after |= lane_bit(to);
    delta += level->net_bytes[net] * (weight_of(after) - weight_of(before));
  }
  return delta;
}

void GridState::move_owner(BlockId block, Lane to) {
  const Lane from = owner[block];
  for (const GridNetId net : level->nets_of(block)) {
    LaneMask after = span(net);
    if (count(net, from) == 0) after &= ~lane_bit(from);
    change_span(net, after | lane_bit(to), from, to);
  }
  const std::int64_t moved = level->blocks[block].held_tokens;
  tokens[from] -= moved;
  tokens[to] += moved;
  node_tokens[layout.node(from)] -= moved;
  node_tokens[layout.node(to)] += moved;
  owner[block] = PackedLane(to);
}

void GridState::change_span(GridNetId net, LaneMask after, Lane owner_before, Lane owner_after) {
  LaneMask& mask = span_[net];
  if (mask == after && owner_before == owner_after) return;
  cost += level->net_bytes[net] * (weight_of(after) - weight_of(mask));
  if (traffic_weight_ != 0) {
    const LaneMask touched = mask | after | lane_bit(owner_before) | lane_bit(owner_after);
    traffic_cost -= traffic_of(touched);
    add_traffic(net, mask, owner_before, -1);
    add_traffic(net, after, owner_after, 1);
    traffic_cost += traffic_of(touched);
  }
  mask = after;
}

// A row net moves half of its bytes out (queries) and half back (partial outputs), a column net
// moves all of them out. Across nodes a unit travels once, to (or from) one device that passes it
// on. Because that device is not known here, each of the node's devices carries an equal share of
// this.
void GridState::add_traffic(GridNetId net, LaneMask mask, Lane owner_lane, double sign) {
  const double bytes = sign * static_cast<double>(level->net_bytes[net]);
  const bool row = level->side_of_net(net) == Side::kRow;
  const double out = row ? bytes / 2 : bytes;
  const double back = row ? bytes / 2 : 0;
  for (const NodeId n : layout.node_ids()) {
    const LaneMask there = mask & layout.node_lanes(n) & ~lane_bit(owner_lane);
    if (there == 0) continue;
    const int devices = std::popcount(there);
    const bool local = n == layout.node(owner_lane);
    const auto weight = static_cast<double>(limits.inter_weight);
    const double times = local ? devices : weight;
    // Copies that each device there moves: its own, which comes from the relay or across nodes, and
    // those that it passes on as a relay.
    const double own = local ? 1 : (weight + devices - 1) / devices;
    const double relayed = local ? 0 : static_cast<double>(devices - 1) / devices;
    sent_[owner_lane] += out * times;
    received_[owner_lane] += back * times;
    for_each_lane(there, [&](Lane lane) {
      received_[lane] += out * own + back * relayed;
      sent_[lane] += back * own + out * relayed;
    });
  }
}

// The fourth power approximates the busiest device and stays smooth for annealing.
double GridState::traffic_of(LaneMask mask) const {
  double sum = 0;
  for_each_lane(mask, [&](Lane lane) {
    const double x = std::max(sent_[lane], received_[lane]) / mean_traffic_;
    sum += x * x * x * x;
  });
  return traffic_weight_ * mean_traffic_ * sum;
}

void GridState::set_traffic_weight(double weight) {
  traffic_weight_ = weight;
  traffic_cost = 0;
  if (weight == 0) return;
  sent_.assign(layout.lanes(), 0);
  received_.assign(layout.lanes(), 0);
  for (const GridNetId net : level->nets()) {
    add_traffic(net, span(net), owner[level->block_of_net(net)], 1);
  }
  double total = 0;
  for (const Lane lane : layout.lanes()) total += (sent_[lane] + received_[lane]) / 2;
  mean_traffic_ = std::max(1.0, total / layout.num_devices());
  traffic_cost = traffic_of(devices_);
}

double GridState::penalties() const {
  double sum = 0;
  for_each_lane(lanes(), [&](Lane lane) {
    sum += work_penalty(lane, load[lane], node_load[layout.node(lane)]) +
           token_penalty(tokens[lane], token_cap(lane));
  });
  if (!limits.node) return sum;
  for (const NodeId n : layout.node_ids()) {
    sum += node_work_penalty(node_load[n]) + token_penalty(node_tokens[n], limits.node->tokens);
  }
  return sum;
}

double GridState::node_penalties(Lane changed, std::int64_t more) const {
  const NodeId node = layout.node(changed);
  const std::int64_t work = node_load[node] + more;
  double sum = node_work_penalty(work);
  for_each_lane(layout.node_lanes(node), [&](Lane lane) {
    sum += work_penalty(lane, load[lane] + (lane == changed ? more : 0), work);
  });
  return sum;
}

double GridState::work_penalty_delta(Lane from, Lane to, std::int64_t work) const {
  if (crosses_limited_nodes(from, to)) {
    return node_penalties(from, -work) - node_penalties(from, 0) + node_penalties(to, work) -
           node_penalties(to, 0);
  }
  const auto penalty = [&](Lane lane, std::int64_t more) {
    return work_penalty(lane, load[lane] + more, node_load[layout.node(lane)]);
  };
  return penalty(from, -work) - penalty(from, 0) + penalty(to, work) - penalty(to, 0);
}

double GridState::token_penalty_delta(Lane from, Lane to, std::int64_t held) const {
  const auto penalty = [&](Lane lane, std::int64_t more) {
    return token_penalty(tokens[lane] + more, token_cap(lane));
  };
  const double delta = penalty(from, -held) - penalty(from, 0) + penalty(to, held) - penalty(to, 0);
  if (!crosses_limited_nodes(from, to)) return delta;
  const auto node_penalty = [&](Lane lane, std::int64_t more) {
    return token_penalty(node_tokens[layout.node(lane)] + more, limits.node->tokens);
  };
  return delta + node_penalty(from, -held) - node_penalty(from, 0) + node_penalty(to, held) -
         node_penalty(to, 0);
}

bool GridState::has_work_room(Lane from, Lane to, std::int64_t work) const {
  if (!crosses_limited_nodes(from, to)) return load[to] + work <= work_limit(to);
  const std::int64_t there = node_load[layout.node(to)] + work;
  if (there > limits.node->work || load[to] + work > work_limit_in(there)) return false;
  // With less work on the node that it leaves, the limit of that node's devices falls, too.
  const std::int64_t limit = work_limit_in(node_load[layout.node(from)] - work);
  bool room = true;
  for_each_lane(layout.node_lanes(layout.node(from)) & ~lane_bit(from), [&](Lane lane) {
    room = room && (load[lane] <= limit || load[lane] > work_limit(lane));
  });
  return room;
}

bool GridState::has_token_room(Lane from, Lane to, std::int64_t held) const {
  if (tokens[to] + held > token_cap(to)) return false;
  return !crosses_limited_nodes(from, to) ||
         node_tokens[layout.node(to)] + held <= limits.node->tokens;
}

}  // namespace contextile
