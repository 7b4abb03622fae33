#include "schedule/overlap.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"

namespace contextile {
namespace {

constexpr std::int32_t kNoStage = -1;
constexpr std::size_t kNoRoute = static_cast<std::size_t>(-1);

class OverlapScheduler {
 public:
  OverlapScheduler(const DivisionProblem& problem, const OverlapCosts& costs,
                   const OverlapOptions& options)
      : problem_(problem),
        costs_(costs),
        num_stages_(options.stages),
        stage_(problem.tiles.size(), kNoStage),
        need_(problem.routes.size(), kNoStage),
        leave_(problem.routes.size(), kNoStage),
        feeds_(problem.routes.size(), kNoRoute),
        passes_on_(problem.routes.size(), false) {
    for (std::size_t r = 0; r < problem.routes.size(); ++r) {
      const UnitRoute& hop = problem.routes[r];
      const bool is_new =
          route_of_.emplace(key(hop.kind, hop.block, hop.group, hop.device), r).second;
      CONTEXTILE_CHECK(is_new,
                       "schedule: expected one route of {} of block {} to device {}, found two",
                       to_string(hop.kind), hop.block.value, hop.device.value);
    }
    for (std::size_t r = 0; r < problem.routes.size(); ++r) {
      const UnitRoute& hop = problem.routes[r];
      if (hop.via == owner(hop.block)) continue;
      feeds_[r] = find(hop.kind, hop.block, hop.group, hop.via);
      CONTEXTILE_CHECK(feeds_[r] != kNoRoute,
                       "schedule: expected a route of {} of block {} to its relay {}",
                       to_string(hop.kind), hop.block.value, hop.via.value);
      passes_on_[feeds_[r]] = true;
    }
  }

  ArrangedDirection run() {
    const auto devices = static_cast<std::size_t>(problem_.num_devices);
    mine_.resize(devices);
    for (std::size_t t = 0; t < problem_.tiles.size(); ++t) {
      mine_[problem_.tiles[t].device.index()].push_back(t);
    }
    for (std::vector<std::size_t>& mine : mine_) order_inputs(mine);
    obey_relays();
    for (std::vector<std::size_t>& mine : mine_) place_tiles(mine);
    time_results();
    for (std::size_t d = 0; d < devices; ++d) fill(d);
    return result();
  }

 private:
  using Key = std::uint64_t;
  [[nodiscard]] Key key(Kind kind, BlockId block, GroupId group, Rank device) const {
    const auto unit = static_cast<Key>(block.index()) * static_cast<Key>(problem_.head_groups) +
                      static_cast<Key>(group.index());
    return (unit * static_cast<Key>(problem_.num_devices) + static_cast<Key>(device.index())) *
               kNumKinds +
           static_cast<Key>(kind);
  }
  [[nodiscard]] std::size_t find(Kind kind, BlockId block, GroupId group, Rank device) const {
    const auto it = route_of_.find(key(kind, block, group, device));
    return it == route_of_.end() ? kNoRoute : it->second;
  }
  [[nodiscard]] Rank owner(BlockId block) const { return problem_.owners[block.index()]; }

  // Routes of the inputs (or results) a tile has on its device.
  template <typename Visit>
  void for_each_route(std::size_t t, bool results, const Visit& visit) const {
    const PlacedTile& tile = problem_.tiles[t];
    for (int k = 0; k < kNumKinds; ++k) {
      const auto kind = static_cast<Kind>(k);
      if (is_result(kind) != results || !occurs_in(kind, problem_.direction)) continue;
      const BlockId block = is_of_kv(kind) ? tile.kv_block : tile.q_block;
      if (owner(block) == tile.device) continue;
      const std::size_t r = find(kind, block, tile.group, tile.device);
      if (r != kNoRoute) visit(r);
    }
  }

  [[nodiscard]] double route_us(std::size_t r) const {
    const UnitRoute& hop = problem_.routes[r];
    const std::int64_t bytes =
        unit_bytes(hop.kind, problem_.blocks->num_tokens(hop.block), problem_.shape,
                   problem_.head_groups, problem_.shape.dtype);
    const bool local =
        hop.via.value / problem_.devices_per_node == hop.device.value / problem_.devices_per_node;
    return static_cast<double>(bytes) *
           (local ? costs_.intra_us_per_byte : costs_.inter_us_per_byte);
  }

  // Tiles in the order in which their inputs should arrive, and the stage of each input.
  void order_inputs(std::vector<std::size_t>& mine) {
    double total_us = 0;
    const auto rank_of = [&](std::size_t t) {
      bool forwards = false;
      bool returns = false;
      for_each_route(t, false, [&](std::size_t r) { forwards = forwards || passes_on_[r]; });
      for_each_route(t, true, [&](std::size_t) { returns = true; });
      return forwards ? 0 : returns ? 1 : 2;
    };
    std::vector<std::tuple<int, BlockId, BlockId, GroupId, std::size_t>> order;
    order.reserve(mine.size());
    for (const std::size_t t : mine) {
      const PlacedTile& tile = problem_.tiles[t];
      order.emplace_back(rank_of(t), tile.q_block, tile.kv_block, tile.group, t);
      for_each_route(t, false, [&](std::size_t r) {
        if (need_[r] == kNoStage) total_us += route_us(r);
        need_[r] = 0;  // seen
      });
    }
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = std::get<4>(order[i]);
    double so_far_us = 0;
    for (const std::size_t t : mine) {
      for_each_route(t, false, [&](std::size_t r) {
        if (need_[r] != 0) return;
        const double share = total_us > 0 ? so_far_us / total_us : 0;
        need_[r] = 1 + std::min(num_stages_ - 1, static_cast<std::int32_t>(share * num_stages_));
        so_far_us += route_us(r);
      });
    }
  }

  // A relay has a unit one stage before it passes it on.
  void obey_relays() {
    for (std::size_t r = 0; r < need_.size(); ++r) {
      if (is_result(problem_.routes[r].kind) || feeds_[r] == kNoRoute || need_[r] == kNoStage) {
        continue;
      }
      need_[r] = std::max(need_[r], 2);
      std::int32_t& relay = need_[feeds_[r]];
      relay = relay == kNoStage ? need_[r] - 1 : std::min(relay, need_[r] - 1);
    }
  }

  void place_tiles(std::vector<std::size_t>& mine) {
    for (const std::size_t t : mine) {
      std::int32_t stage = kNoStage;
      for_each_route(t, false, [&](std::size_t r) { stage = std::max(stage, need_[r]); });
      bool returns = false;
      for_each_route(t, true, [&](std::size_t) { returns = true; });
      if (returns) stage = std::max(stage, 0);
      stage_[t] = stage;
      last_stage_ = std::max(last_stage_, stage);
      for_each_route(t, true, [&](std::size_t r) { leave_[r] = std::max(leave_[r], stage + 1); });
    }
  }

  // A relay sends on what it gathers one stage after it arrived.
  void time_results() {
    for (std::size_t r = 0; r < leave_.size(); ++r) {
      if (leave_[r] == kNoStage || feeds_[r] == kNoRoute) continue;
      leave_[feeds_[r]] = std::max(leave_[feeds_[r]], leave_[r] + 1);
    }
  }

  // Tiles of a device that need nothing go where its transfers would be waited for.
  void fill(std::size_t d) {
    const auto stages = static_cast<std::size_t>(last_stage_) + 2;
    std::vector<double> spare_us(stages);  // compute beyond what hides the stage's transfers
    for (const std::size_t t : mine_[d]) {
      if (stage_[t] >= 0) spare_us[static_cast<std::size_t>(stage_[t])] += costs_.tile_us[t];
    }
    for (std::size_t s = 0; s < stages; ++s) spare_us[s] -= inflight_us(d, s);
    for (const std::size_t t : mine_[d]) {
      if (stage_[t] >= 0) continue;
      const auto neediest = std::min_element(spare_us.begin(), spare_us.end());
      const bool any_needy = *neediest < 0;
      const std::size_t s = any_needy ? static_cast<std::size_t>(neediest - spare_us.begin()) : 0;
      stage_[t] = static_cast<std::int32_t>(s);
      spare_us[s] += costs_.tile_us[t];
    }
  }

  // Time the transfers launched before a stage keep a device's ports busy.
  [[nodiscard]] double inflight_us(std::size_t d, std::size_t stage) {
    if (inflight_.empty()) count_inflight();
    const auto& ports = inflight_[d];
    return stage < ports.size() ? std::max(ports[stage].first, ports[stage].second) : 0;
  }

  void count_inflight() {
    const auto stages = static_cast<std::size_t>(last_stage_) + 2;
    inflight_.assign(mine_.size(), std::vector<std::pair<double, double>>(stages));
    const auto add = [&](Rank from, Rank to, std::int32_t launch, double us) {
      if (launch < 0) return;
      const std::size_t s = std::min(static_cast<std::size_t>(launch), stages - 1);
      inflight_[from.index()][s].first += us;
      inflight_[to.index()][s].second += us;
    };
    for (std::size_t r = 0; r < problem_.routes.size(); ++r) {
      const UnitRoute& hop = problem_.routes[r];
      if (is_result(hop.kind)) {
        if (leave_[r] != kNoStage) add(hop.device, hop.via, leave_[r], route_us(r));
      } else if (need_[r] != kNoStage) {
        add(hop.via, hop.device, need_[r] - 1, route_us(r));
      }
    }
  }

  [[nodiscard]] ArrangedDirection result() const {
    ArrangedDirection out;
    out.tiles.reserve(problem_.tiles.size());
    for (const std::vector<std::size_t>& mine : mine_) {
      for (const std::size_t t : mine) {
        out.tiles.push_back(problem_.tiles[t]);
        out.tiles.back().stage = stage_[t];
      }
    }
    for (std::size_t r = 0; r < problem_.routes.size(); ++r) {
      const UnitRoute& hop = problem_.routes[r];
      if (is_result(hop.kind) && leave_[r] != kNoStage) {
        out.transfers.push_back(
            {hop.kind, hop.block, hop.group, hop.device, hop.via, leave_[r], leave_[r] + 1});
      } else if (!is_result(hop.kind) && need_[r] != kNoStage) {
        out.transfers.push_back(
            {hop.kind, hop.block, hop.group, hop.via, hop.device, need_[r] - 1, need_[r]});
      }
    }
    return out;
  }

  const DivisionProblem& problem_;
  const OverlapCosts& costs_;
  std::int32_t num_stages_;
  std::int32_t last_stage_ = 0;
  std::vector<std::int32_t> stage_;             // of every tile
  std::vector<std::int32_t> need_;              // of every input route
  std::vector<std::int32_t> leave_;             // of every result route
  std::vector<std::size_t> feeds_;              // of every route: the relay's own route
  std::vector<bool> passes_on_;                 // of every route: others depend on it
  std::vector<std::vector<std::size_t>> mine_;  // tiles of every device
  std::vector<std::vector<std::pair<double, double>>> inflight_;  // (sent, received) by stage
  std::unordered_map<Key, std::size_t> route_of_;
};

}  // namespace

ArrangedDirection schedule_overlapped(const DivisionProblem& problem, const OverlapCosts& costs,
                                      const OverlapOptions& options) {
  CONTEXTILE_CHECK(options.stages >= 1, "schedule: expected at least 1 stage, found {}",
                   options.stages);
  CONTEXTILE_CHECK(costs.tile_us.size() == problem.tiles.size(),
                   "schedule: expected the costs of {} tiles, found {}", problem.tiles.size(),
                   costs.tile_us.size());
  return OverlapScheduler(problem, costs, options).run();
}

}  // namespace contextile
