#include "strategy/schedule/overlap.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "strategy/schedule/route_index.h"

namespace contextile {
namespace {

constexpr std::int32_t kNoStage = -1;
// Inputs take about this many times as long as with a port of their own, because others use it too.
constexpr double kContention = 1.5;

class OverlapScheduler {
 public:
  OverlapScheduler(const ScheduleProblem& problem, const OverlapCosts& costs,
                   const OverlapOptions& options)
      : problem_(problem),
        index_(problem),
        costs_(costs),
        num_stages_(options.stages),
        ahead_(options.ahead),
        stage_(problem.tiles.size(), kNoStage),
        need_(problem.routes.size(), kNoStage),
        leave_(problem.routes.size(), kNoStage),
        feeds_(problem.routes.size(), kNoRoute),
        passes_on_(problem.routes.size(), false) {
    for (std::size_t r = 0; r < problem.routes.size(); ++r) {
      feeds_[r] = index_.relay_of(r);
      if (feeds_[r] != kNoRoute) passes_on_[feeds_[r]] = true;
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
    return result();
  }

 private:
  template <typename Visit>
  void for_each_route(std::size_t t, bool results, const Visit& visit) const {
    index_.for_each(t, results, visit);
  }

  [[nodiscard]] double route_us(std::size_t r) const {
    const UnitRoute& hop = problem_.routes[r];
    const std::int64_t bytes = problem_.bytes_of(hop.kind, hop.block, problem_.shape.dtype);
    const bool local =
        hop.via.value / problem_.devices_per_node == hop.device.value / problem_.devices_per_node;
    return static_cast<double>(bytes) *
           (local ? costs_.intra_us_per_byte : costs_.inter_us_per_byte);
  }

  // Sorts tiles in the order in which their inputs should arrive, and decides the stage of each
  // input. Data that one device sends to another is spread evenly over the stages, and every pair
  // begins in another one, so that neither port is overloaded in any stage.
  void order_inputs(std::vector<std::size_t>& mine) {
    order_by_rank(problem_, mine, [&](std::size_t t) {
      bool forwards = false;
      // Tiles rank first if relays pass their inputs on, then if their results must travel.
      bool returns = false;
      for_each_route(t, false, [&](std::size_t r) { forwards = forwards || passes_on_[r]; });
      for_each_route(t, true, [&](std::size_t) { returns = true; });
      return forwards ? 0 : returns ? 1 : 2;
    });
    struct Pair {
      double total_us = 0;
      double so_far_us = 0;
    };
    std::unordered_map<std::int32_t, Pair> from;  // by sender
    double receive_us = 0;
    double compute_us = 0;
    std::vector<std::size_t> arriving;  // in the order of first use
    for (std::size_t i = 0; i < mine.size(); ++i) {
      compute_us += costs_.tile_us[mine[i]];
      for_each_route(mine[i], false, [&](std::size_t r) {
        if (need_[r] != kNoStage) return;
        need_[r] = 0;  // seen
        arriving.push_back(r);
        from[problem_.routes[r].via.value].total_us += route_us(r);
        receive_us += route_us(r);
      });
    }
    // Inputs arrive over as many stages as they take compared with the compute.
    const double stages_of_input =
        compute_us > 0 ? kContention * receive_us / compute_us * num_stages_ : 1;
    const auto last_arrival = static_cast<std::int32_t>(
        std::clamp(std::ceil(stages_of_input), 1.0, std::max(1.0, num_stages_ - 1.0)));
    for (const std::size_t r : arriving) {
      const UnitRoute& hop = problem_.routes[r];
      Pair& pair = from[hop.via.value];
      const std::int32_t turns =
          (hop.via.value - hop.device.value + problem_.num_devices) % problem_.num_devices;
      const double offset = static_cast<double>(turns) / problem_.num_devices;
      const double position =
          pair.so_far_us / pair.total_us + offset * route_us(r) / pair.total_us;  // in [0, 1)
      need_[r] = 1 + std::min(last_arrival - 1, static_cast<std::int32_t>(position * last_arrival));
      pair.so_far_us += route_us(r);
    }
  }

  // Lets a relay have a unit one stage before it passes it on.
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

  // Returns the result that a tile adds to and that must travel, if any. The tiles of one result
  // run together.
  [[nodiscard]] std::size_t result_of(std::size_t t) const {
    std::size_t result = kNoRoute;
    for_each_route(t, true, [&](std::size_t r) { result = r; });
    return result;
  }

  // Fills the device's stages with equal compute from tiles whose inputs have arrived. Tiles whose
  // results must travel come first, all of one result together, and results that can be complete
  // early come before others.
  void place_tiles(std::vector<std::size_t>& mine) {
    double total_us = 0;
    std::unordered_map<std::size_t, std::int32_t> complete;  // a result's earliest stage
    std::vector<std::int32_t> earliest(mine.size());
    for (std::size_t i = 0; i < mine.size(); ++i) {
      total_us += costs_.tile_us[mine[i]];
      for_each_route(mine[i], false,
                     [&](std::size_t r) { earliest[i] = std::max(earliest[i], need_[r]); });
      const std::size_t result = result_of(mine[i]);
      if (result == kNoRoute) continue;
      std::int32_t& stage = complete[result];
      stage = std::max(stage, earliest[i]);
    }
    struct Ready {
      std::int32_t complete;
      std::size_t result;
      std::size_t index;
      bool operator>(const Ready& other) const {
        return std::tie(complete, result, index) >
               std::tie(other.complete, other.result, other.index);
      }
    };
    std::vector<std::vector<Ready>> arriving(static_cast<std::size_t>(num_stages_) + 2);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const std::size_t result = result_of(mine[i]);
      const std::int32_t key =
          result == kNoRoute ? std::numeric_limits<std::int32_t>::max() : complete[result];
      arriving[static_cast<std::size_t>(earliest[i])].push_back({key, result, i});
    }
    std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
    double done_us = 0;
    for (std::int32_t s = 0; s < static_cast<std::int32_t>(arriving.size()); ++s) {
      for (const Ready& tile : arriving[static_cast<std::size_t>(s)]) ready.push(tile);
      const bool is_last = s + 1 >= num_stages_;
      while (!ready.empty() && (is_last || done_us < total_us * (s + 1) / num_stages_)) {
        const std::size_t t = mine[ready.top().index];
        ready.pop();
        stage_[t] = s;
        done_us += costs_.tile_us[t];
        for_each_route(t, true, [&](std::size_t r) { leave_[r] = std::max(leave_[r], s + 1); });
      }
    }
  }

  // Lets a relay send a result one stage after the parts that it gathers have arrived.
  void time_results() {
    for (std::size_t r = 0; r < leave_.size(); ++r) {
      if (leave_[r] == kNoStage || feeds_[r] == kNoRoute) continue;
      leave_[feeds_[r]] = std::max(leave_[feeds_[r]], leave_[r] + 1);
    }
  }

  // Returns the stage at which an input leaves: up to `ahead` stages before its need, and from a
  // relay not before the relay has it.
  [[nodiscard]] std::int32_t launch_of(std::size_t r) const {
    const std::int32_t at_hand = feeds_[r] == kNoRoute ? 0 : need_[feeds_[r]];
    return std::max(at_hand, need_[r] - ahead_);
  }
  // Returns the stage that waits for a result: the next one if the result is passed on, else
  // `ahead` stages later.
  [[nodiscard]] std::int32_t arrival_of(std::size_t r) const {
    return leave_[r] + (feeds_[r] == kNoRoute ? ahead_ : 1);
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
            {hop.kind, hop.block, hop.group, hop.device, hop.via, leave_[r], arrival_of(r)});
      } else if (!is_result(hop.kind) && need_[r] != kNoStage) {
        out.transfers.push_back(
            {hop.kind, hop.block, hop.group, hop.via, hop.device, launch_of(r), need_[r]});
      }
    }
    return out;
  }

  const ScheduleProblem& problem_;
  RouteIndex index_;
  const OverlapCosts& costs_;
  std::int32_t num_stages_;
  std::int32_t ahead_;
  std::vector<std::int32_t> stage_;             // of every tile
  std::vector<std::int32_t> need_;              // of every input route
  std::vector<std::int32_t> leave_;             // of every result route
  std::vector<std::size_t> feeds_;              // of every route: the relay's own route
  std::vector<bool> passes_on_;                 // of every route: others depend on it
  std::vector<std::vector<std::size_t>> mine_;  // tiles of every device
};

}  // namespace

ArrangedDirection schedule_overlapped(const ScheduleProblem& problem, const OverlapCosts& costs,
                                      const OverlapOptions& options) {
  CONTEXTILE_CHECK(options.stages >= 1, "schedule: expected at least 1 stage, found {}",
                   options.stages);
  CONTEXTILE_CHECK(options.ahead >= 1, "schedule: expected at least 1 stage ahead, found {}",
                   options.ahead);
  CONTEXTILE_CHECK(costs.tile_us.size() == problem.tiles.size(),
                   "schedule: expected the costs of {} tiles, found {}", problem.tiles.size(),
                   costs.tile_us.size());
  return OverlapScheduler(problem, costs, options).run();
}

}  // namespace contextile
