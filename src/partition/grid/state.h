// An assignment of one level. All quantities that a move changes are kept exact: spans of nets,
// bytes, loads, traffic of devices.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "partition/grid/level.h"

namespace contextile {

using NodeId = Id<struct GridNodeTag>;
using Lane = Id<struct LaneTag>;  // bit of a LaneMask

// Devices as bits of one word: every node has `width` lanes, and device d of node n is lane n·width
// + d.
using LaneMask = std::uint64_t;
inline constexpr std::int32_t kMaxLanes = 64;

[[nodiscard]] inline Lane lowest_lane(LaneMask mask) { return Lane{std::countr_zero(mask)}; }
[[nodiscard]] inline LaneMask lane_bit(Lane lane) { return LaneMask{1} << lane.value; }

// Calls visit(lane) for the mask's lanes from the lowest up.
template <typename Visit>
void for_each_lane(LaneMask mask, const Visit& visit) {
  for (; mask != 0; mask &= mask - 1) visit(lowest_lane(mask));
}

// A lane in one byte, so that a search for bytes finds a net's tiles on a lane.
struct PackedLane {
  std::uint8_t value = 0;

  constexpr PackedLane() = default;
  constexpr explicit PackedLane(Lane lane) : value(static_cast<std::uint8_t>(lane.value)) {}
  // NOLINTNEXTLINE(google-explicit-constructor): a packed lane is a lane wherever one is read
  constexpr operator Lane() const { return Lane{value}; }

  friend constexpr bool operator==(PackedLane, PackedLane) = default;
};

struct LaneLayout {
  std::int32_t nodes = 1;
  std::int32_t devices_per_node = 1;
  std::int32_t width = 1;  // lanes of a node, a power of two

  // The nodes and devices must fit, see `fits`.
  LaneLayout(std::int32_t nodes, std::int32_t devices_per_node);
  [[nodiscard]] static bool fits(std::int32_t nodes, std::int32_t devices_per_node);

  [[nodiscard]] std::int32_t num_devices() const { return nodes * devices_per_node; }
  [[nodiscard]] IdRange<Lane> lanes() const { return IdRange<Lane>(nodes * width); }
  [[nodiscard]] IdRange<NodeId> node_ids() const { return IdRange<NodeId>(nodes); }
  [[nodiscard]] Lane lane(Rank device) const {
    return Lane{device.value / devices_per_node * width + device.value % devices_per_node};
  }
  // Returns the lane of the node's device `in_node`, counted from 0.
  [[nodiscard]] Lane lane(NodeId node, std::int32_t in_node) const {
    return Lane{node.value * width + in_node};
  }
  [[nodiscard]] Rank device(Lane lane) const {
    return Rank{lane.value / width * devices_per_node + lane.value % width};
  }
  [[nodiscard]] NodeId node(Lane lane) const { return NodeId{lane.value / width}; }
  [[nodiscard]] LaneMask node_lanes(NodeId node) const {
    const LaneMask all =
        devices_per_node == kMaxLanes ? ~LaneMask{0} : (LaneMask{1} << devices_per_node) - 1;
    return all << (node.value * width);
  }
  [[nodiscard]] std::int32_t count_nodes(LaneMask mask) const {
    if (nodes == 1) return mask != 0 ? 1 : 0;
    for (std::int32_t step = width / 2; step > 0; step /= 2) mask |= mask >> step;
    return std::popcount(mask & node_firsts_);
  }

 private:
  LaneMask node_firsts_ = 0;  // lane 0 of every node
};

// The devices that tiles and blocks may move to.
enum class Reach : std::uint8_t {
  kAll,      // any device
  kNodes,    // nodes are being chosen: everything of a node is on its first device
  kInsides,  // devices of the same node
};

// Limits of nodes while devices are chosen (GridBounds::kNested).
struct NodeLimits {
  std::int64_t work = 0;
  std::int64_t tokens = 0;
};

struct GridLimits {
  double mean_work = 0;   // of a place (a device, or a node under Reach::kNodes)
  double work_cap = 1.1;  // in means, with `node` in means of the device's own node
  std::optional<NodeLimits> node;
  std::int64_t token_cap = 0;
  IdVector<Lane, double> share;  // in mean places; empty: all 1
  std::int64_t node_weight = 3;
  std::int64_t inter_weight = 1;
  double work_penalty = 0;  // bytes per unit of relative overload
  double token_penalty = 0;
};

class GridState {
 public:
  GridState(const GridLevel& grid, const LaneLayout& lane_layout, const GridLimits& grid_limits);

  const GridLevel* level;
  LaneLayout layout;
  GridLimits limits;
  Reach reach = Reach::kAll;
  IdVector<TileId, PackedLane> place;
  IdVector<BlockId, PackedLane> owner;
  std::int64_t cost = 0;              // bytes · (1 + node weight across nodes)
  double traffic_cost = 0;            // 0 unless traffic is on
  IdVector<Lane, std::int64_t> load;  // work
  IdVector<Lane, std::int64_t> tokens;
  IdVector<NodeId, std::int64_t> node_load;
  IdVector<NodeId, std::int64_t> node_tokens;

  // Recomputes everything derived from place and owner.
  void rebuild();
  void set_traffic_weight(double weight);
  [[nodiscard]] double traffic_weight() const { return traffic_weight_; }

  [[nodiscard]] LaneMask lanes() const { return reach == Reach::kNodes ? node_firsts_ : devices_; }
  [[nodiscard]] LaneMask reachable(Lane from) const {
    return reach == Reach::kInsides ? layout.node_lanes(layout.node(from)) : lanes();
  }
  // Returns the lanes that a net spans, including its owner.
  [[nodiscard]] LaneMask span(GridNetId net) const { return span_[net]; }
  [[nodiscard]] std::int32_t count(GridNetId net, Lane lane) const {
    return count_[count_index(net, lane)];
  }
  // Calls visit(tile) for the net's tiles on `lane`, in listed order; nothing may move meanwhile.
  template <typename Visit>
  void for_each_tile(GridNetId net, Lane lane, const Visit& visit) const {
    const PackedLane* const first = listed_place_.data() + level->pins_begin(net).index();
    const PackedLane* const last = listed_place_.data() + level->pins_end(net).index();
    const TileId* const tiles = level->net_tiles.data() + level->pins_begin(net).index();
    const PackedLane* at = first;
    for (std::int32_t left = count(net, lane); left > 0; --left) {
      at = static_cast<const PackedLane*>(
          std::memchr(at, lane.value, static_cast<std::size_t>(last - at)));
      visit(tiles[at - first]);
      ++at;
    }
  }
  [[nodiscard]] std::int64_t weight_of(LaneMask mask) const {
    return std::popcount(mask) + limits.node_weight * layout.count_nodes(mask);
  }

  // Return the change of `cost`, without penalties and traffic.
  [[nodiscard]] std::int64_t tile_delta(TileId tile, Lane to) const;
  [[nodiscard]] std::int64_t owner_delta(BlockId block, Lane to) const;
  void move_tile(TileId tile, Lane to);
  void move_owner(BlockId block, Lane to);

  [[nodiscard]] double penalties() const;
  // Return the change of the penalties if work, or tokens, moved between two lanes.
  [[nodiscard]] double work_penalty_delta(Lane from, Lane to, std::int64_t work) const;
  [[nodiscard]] double token_penalty_delta(Lane from, Lane to, std::int64_t held) const;
  // Annealing minimises energy().
  [[nodiscard]] double energy_without_penalties() const {
    return static_cast<double>(cost) + traffic_cost;
  }
  [[nodiscard]] double energy() const { return energy_without_penalties() + penalties(); }
  [[nodiscard]] double share(Lane lane) const { return share_[lane]; }
  [[nodiscard]] std::int64_t work_limit(Lane lane) const {
    const NodeId node = layout.node(lane);
    return limits.node
               ? work_limit_in(node_load[node])
               : static_cast<std::int64_t>(limits.work_cap * limits.mean_work * share(lane));
  }
  [[nodiscard]] std::int64_t token_cap(Lane lane) const { return token_cap_[lane]; }
  // Return true if `to` and its node have room for the moved work or tokens. For work, moreover, no
  // device that stays in the node of `from` may come above its limit.
  [[nodiscard]] bool has_work_room(Lane from, Lane to, std::int64_t work) const;
  [[nodiscard]] bool has_token_room(Lane from, Lane to, std::int64_t held) const;

 private:
  [[nodiscard]] LaneMask span_after(GridNetId net, BlockId block, Lane from, Lane to) const {
    LaneMask mask = span(net);
    if (count(net, from) == 1 && owner[block] != from) mask &= ~lane_bit(from);
    return mask | lane_bit(to);
  }
  // Returns the work that a device may have if its node has `work_of_node`.
  [[nodiscard]] std::int64_t work_limit_in(std::int64_t work_of_node) const {
    return static_cast<std::int64_t>(limits.work_cap * static_cast<double>(work_of_node) /
                                     layout.devices_per_node);
  }
  [[nodiscard]] double work_penalty(Lane lane, std::int64_t work, std::int64_t work_of_node) const {
    const double cap = limits.node ? limits.work_cap * static_cast<double>(work_of_node) /
                                         (limits.mean_work * layout.devices_per_node)
                                   : limits.work_cap;
    return overload_penalty(static_cast<double>(work) / (limits.mean_work * share(lane)) - cap);
  }
  [[nodiscard]] double node_work_penalty(std::int64_t work) const {
    return overload_penalty(static_cast<double>(work - limits.node->work) / limits.mean_work);
  }
  [[nodiscard]] double overload_penalty(double excess) const {
    return excess > 0 ? limits.work_penalty * excess * (1 + 10 * excess) : 0;
  }
  [[nodiscard]] double token_penalty(std::int64_t held, std::int64_t cap) const {
    const double excess = static_cast<double>(held - cap) / mean_tokens_;
    return excess > 0 ? limits.token_penalty * excess : 0;
  }
  // Returns the penalties of a node and its devices if `changed`, one of them, had that much more
  // work.
  [[nodiscard]] double node_penalties(Lane changed, std::int64_t more) const;
  // Returns true if nodes have limits and the lanes are on different nodes.
  [[nodiscard]] bool crosses_limited_nodes(Lane a, Lane b) const {
    return limits.node && layout.node(a) != layout.node(b);
  }
  void list_place(TileId tile, PackedLane lane) {
    listed_place_[level->row_pin[tile]] = lane;
    listed_place_[level->column_pin[tile]] = lane;
  }
  void change_span(GridNetId net, LaneMask after, Lane owner_before, Lane owner_after);
  void add_traffic(GridNetId net, LaneMask mask, Lane owner_lane, double sign);
  [[nodiscard]] double traffic_of(LaneMask mask) const;

  [[nodiscard]] std::size_t count_index(GridNetId net, Lane lane) const {
    return net.index() * num_lanes_ + lane.index();
  }

  std::size_t num_lanes_;
  LaneMask devices_ = 0;
  LaneMask node_firsts_ = 0;
  double mean_tokens_ = 1;
  IdVector<Lane, double> share_;
  IdVector<Lane, std::int64_t> token_cap_;
  IdVector<GridNetId, LaneMask> span_;
  std::vector<std::uint16_t> count_;          // [net][lane] tiles
  IdVector<PinId, PackedLane> listed_place_;  // lane of the tile that a net lists there
  double traffic_weight_ = 0;
  double mean_traffic_ = 1;
  IdVector<Lane, double> sent_;
  IdVector<Lane, double> received_;
};

}  // namespace contextile
