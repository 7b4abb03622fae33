// An assignment of one level, with everything a move changes kept exact: spans of nets, bytes,
// loads, traffic of devices.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "partition/level.h"

namespace contextile {

// Devices as bits of one word: every node has `width` lanes, device d of node n is lane n·width +
// d.
using LaneMask = std::uint64_t;
using Lane = std::int32_t;
inline constexpr std::int32_t kMaxLanes = 64;

struct LaneLayout {
  std::int32_t nodes = 1;
  std::int32_t devices_per_node = 1;
  std::int32_t width = 1;  // lanes of a node, a power of two

  // nodes x devices must fit: see `fits`.
  LaneLayout(std::int32_t nodes, std::int32_t devices_per_node);
  [[nodiscard]] static bool fits(std::int32_t nodes, std::int32_t devices_per_node);

  [[nodiscard]] std::int32_t num_lanes() const { return nodes * width; }
  [[nodiscard]] std::int32_t num_devices() const { return nodes * devices_per_node; }
  [[nodiscard]] Lane lane(std::int32_t device) const {
    return device / devices_per_node * width + device % devices_per_node;
  }
  [[nodiscard]] std::int32_t device(Lane lane) const {
    return lane / width * devices_per_node + lane % width;
  }
  [[nodiscard]] std::int32_t node(Lane lane) const { return lane / width; }
  [[nodiscard]] LaneMask node_lanes(std::int32_t node) const {
    const LaneMask all =
        devices_per_node == kMaxLanes ? ~LaneMask{0} : (LaneMask{1} << devices_per_node) - 1;
    return all << (node * width);
  }
  [[nodiscard]] std::int32_t count_nodes(LaneMask mask) const {
    if (nodes == 1) return mask != 0 ? 1 : 0;
    for (std::int32_t step = width / 2; step > 0; step /= 2) mask |= mask >> step;
    return std::popcount(mask & node_firsts_);
  }

 private:
  LaneMask node_firsts_ = 0;  // lane 0 of every node
};

[[nodiscard]] inline Lane lowest_lane(LaneMask mask) { return std::countr_zero(mask); }
[[nodiscard]] inline LaneMask lane_bit(Lane lane) { return LaneMask{1} << lane; }

// Where tiles and blocks may move.
enum class Reach : std::uint8_t {
  kAll,      // any device
  kNodes,    // everything of a node sits on its first device: nodes are being chosen
  kInsides,  // devices of the same node
};

struct GridLimits {
  double mean_work = 0;   // of a place (a device, or a node under Reach::kNodes)
  double work_cap = 1.1;  // in means
  std::int64_t token_cap = 0;
  std::vector<double> share;  // of every lane, in mean places; empty: all 1
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
  std::vector<std::uint8_t> place;  // lane of every tile
  std::vector<std::uint8_t> owner;  // lane of every block
  std::int64_t cost = 0;            // bytes · (1 + node weight across nodes)
  double traffic_cost = 0;          // 0 unless traffic is on
  std::vector<std::int64_t> load;   // work of every lane
  std::vector<std::int64_t> tokens;

  // Recomputes everything derived from place and owner.
  void rebuild();
  void set_traffic_weight(double weight);
  [[nodiscard]] double traffic_weight() const { return traffic_weight_; }

  [[nodiscard]] LaneMask lanes() const { return reach == Reach::kNodes ? node_firsts_ : devices_; }
  [[nodiscard]] LaneMask reachable(Lane from) const {
    return reach == Reach::kInsides ? layout.node_lanes(layout.node(from)) : lanes();
  }
  // Lanes a net spans, its owner included.
  [[nodiscard]] LaneMask span(std::int32_t net) const {
    return span_[static_cast<std::size_t>(net)];
  }
  [[nodiscard]] std::int32_t count(std::int32_t net, Lane lane) const {
    return count_[count_index(net, lane)];
  }
  // Calls visit(tile) for the net's tiles on `lane`, in listed order; nothing may move meanwhile.
  template <typename Visit>
  void for_each_tile(std::int32_t net, Lane lane, const Visit& visit) const {
    const auto begin = level->first_tile[static_cast<std::size_t>(net)];
    const auto end = level->first_tile[static_cast<std::size_t>(net) + 1];
    const std::uint8_t* at = listed_place_.data() + begin;
    const std::uint8_t* const last = listed_place_.data() + end;
    for (std::int32_t left = count(net, lane); left > 0; --left) {
      at = static_cast<const std::uint8_t*>(
          std::memchr(at, lane, static_cast<std::size_t>(last - at)));
      visit(level->net_tiles[static_cast<std::size_t>(at - listed_place_.data())]);
      ++at;
    }
  }
  [[nodiscard]] std::int64_t weight_of(LaneMask mask) const {
    return std::popcount(mask) + limits.node_weight * layout.count_nodes(mask);
  }

  // Change of `cost`, without penalties and traffic.
  [[nodiscard]] std::int64_t tile_delta(std::int32_t tile, Lane to) const;
  [[nodiscard]] std::int64_t owner_delta(std::int32_t block, Lane to) const;
  void move_tile(std::int32_t tile, Lane to);
  void move_owner(std::int32_t block, Lane to);

  [[nodiscard]] double work_penalty(Lane lane, std::int64_t work) const {
    const double excess =
        static_cast<double>(work) / (limits.mean_work * share(lane)) - limits.work_cap;
    return excess > 0 ? limits.work_penalty * excess * (1 + 10 * excess) : 0;
  }
  [[nodiscard]] double token_penalty(Lane lane, std::int64_t held) const {
    const double excess = static_cast<double>(held - token_cap(lane)) / mean_tokens_;
    return excess > 0 ? limits.token_penalty * excess : 0;
  }
  [[nodiscard]] double penalties() const;
  // What annealing minimises.
  [[nodiscard]] double energy_without_penalties() const {
    return static_cast<double>(cost) + traffic_cost;
  }
  [[nodiscard]] double energy() const { return energy_without_penalties() + penalties(); }
  [[nodiscard]] double share(Lane lane) const { return share_[static_cast<std::size_t>(lane)]; }
  [[nodiscard]] std::int64_t work_limit(Lane lane) const {
    return static_cast<std::int64_t>(limits.work_cap * limits.mean_work * share(lane));
  }
  [[nodiscard]] std::int64_t token_cap(Lane lane) const {
    return token_cap_[static_cast<std::size_t>(lane)];
  }

 private:
  [[nodiscard]] LaneMask span_after(std::int32_t net, std::int32_t block, Lane from,
                                    Lane to) const {
    LaneMask mask = span(net);
    if (count(net, from) == 1 && owner[static_cast<std::size_t>(block)] != from)
      mask &= ~lane_bit(from);
    return mask | lane_bit(to);
  }
  void list_place(std::size_t tile, std::uint8_t lane) {
    listed_place_[static_cast<std::size_t>(level->row_slot[tile])] = lane;
    listed_place_[static_cast<std::size_t>(level->column_slot[tile])] = lane;
  }
  void change_span(std::int32_t net, LaneMask after, Lane owner_before, Lane owner_after);
  void add_traffic(std::int32_t net, LaneMask mask, Lane owner_lane, double sign);
  [[nodiscard]] double traffic_of(LaneMask mask) const;

  [[nodiscard]] std::size_t count_index(std::int32_t net, Lane lane) const {
    return static_cast<std::size_t>(net) * static_cast<std::size_t>(num_lanes_) +
           static_cast<std::size_t>(lane);
  }

  std::int32_t num_lanes_;
  LaneMask devices_ = 0;
  LaneMask node_firsts_ = 0;
  double mean_tokens_ = 1;
  std::vector<double> share_;            // of every lane
  std::vector<std::int64_t> token_cap_;  // of every lane
  std::vector<LaneMask> span_;
  std::vector<std::uint16_t> count_;        // [net][lane] tiles
  std::vector<std::uint8_t> listed_place_;  // lane of every tile in the order of level->net_tiles
  double traffic_weight_ = 0;
  double mean_traffic_ = 1;
  std::vector<double> sent_;
  std::vector<double> received_;
};

}  // namespace contextile
