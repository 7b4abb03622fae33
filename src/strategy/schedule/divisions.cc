#include "strategy/schedule/divisions.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "strategy/schedule/route_index.h"

namespace contextile {
namespace {

constexpr std::int32_t kNotYet = -1;

class DivisionScheduler {
 public:
  DivisionScheduler(const ScheduleProblem& problem, const DivisionOptions& options)
      : problem_(problem),
        index_(problem),
        options_(options),
        stage_(problem.tiles.size(), kNotYet) {
    index_.require_all();
    std::unordered_map<std::int64_t, std::uint32_t> pairs;
    routes_.resize(problem.routes.size());
    for (std::size_t r = 0; r < routes_.size(); ++r) {
      const UnitRoute& route = problem.routes[r];
      if (is_result(route.kind)) continue;
      const bool by_relay = route.via != owner(route.block);
      const auto pair =
          pairs.try_emplace(pair_key(route), static_cast<std::uint32_t>(pairs.size())).first;
      routes_[r] = {bytes(route), pair->second, by_relay};
      pair_bytes_.resize(pairs.size());
      pair_bytes_[pair->second] += routes_[r].bytes;
      relayed_ = relayed_ || by_relay;
    }
    first_use_.assign(problem.routes.size(), kNotYet);
    last_use_.assign(problem.routes.size(), kNotYet);
    moved_bytes_.assign(pair_bytes_.size(), 0);
  }

  ArrangedDirection run() {
    order_tiles();
    const std::int32_t last = std::max(options_.divisions - 1, relayed_ ? 2 : 1);
    take_local_tiles();
    for (std::int32_t division = 1; division <= last; ++division) fill(division, division == last);
    ArrangedDirection out;
    for (std::size_t t = 0; t < problem_.tiles.size(); ++t) {
      PlacedTile tile = problem_.tiles[t];
      tile.stage = stage_[t];
      out.tiles.push_back(tile);
    }
    move_inputs(out);
    move_results(last + 1, out);
    return out;
  }

 private:
  // An input's route: its bytes, and the pair of devices that moves them.
  struct InputRoute {
    std::int64_t bytes = 0;
    std::uint32_t pair = 0;
    bool by_relay = false;
  };

  [[nodiscard]] Rank owner(BlockId block) const { return problem_.owners[block.index()]; }
  [[nodiscard]] std::int64_t pair_key(const UnitRoute& route) const {
    return std::int64_t{route.via.value} * problem_.num_devices + route.device.value;
  }
  [[nodiscard]] std::int64_t bytes(const UnitRoute& route) const {
    return problem_.bytes_of(route.kind, route.block, problem_.shape.dtype);
  }
  void order_tiles() {
    waiting_.resize(static_cast<std::size_t>(problem_.num_devices));
    for (std::size_t t = 0; t < problem_.tiles.size(); ++t) {
      waiting_[problem_.tiles[t].device.index()].push_back(t);
    }
    const auto place_of = [&](std::size_t t) {
      const PlacedTile& tile = problem_.tiles[t];
      return std::tuple(tile.q_block, tile.kv_block, tile.group);
    };
    for (auto& mine : waiting_) {
      if (!std::ranges::is_sorted(mine, {}, place_of)) std::ranges::sort(mine, {}, place_of);
    }
  }

  void place(std::size_t t, std::int32_t division) {
    stage_[t] = division;
    index_.for_each(t, false, [&](std::size_t r) {
      if (first_use_[r] != kNotYet) return;
      first_use_[r] = division;
      moved_bytes_[routes_[r].pair] += routes_[r].bytes;
    });
    index_.for_each(t, true,
                    [&](std::size_t r) { last_use_[r] = std::max(last_use_[r], division); });
  }

  // Division 0 has the tiles that receive nothing.
  void take_local_tiles() {
    for (auto& mine : waiting_) {
      std::erase_if(mine, [&](std::size_t t) {
        bool local = true;
        index_.for_each(t, false, [&](std::size_t) { local = false; });
        if (local) place(t, 0);
        return local;
      });
    }
  }

  // Returns true if all inputs that the tile still lacks may travel for this division.
  [[nodiscard]] bool fits(std::size_t t, std::int32_t division) {
    bool ok = true;
    added_.clear();
    index_.for_each(t, false, [&](std::size_t r) {
      if (first_use_[r] != kNotYet) return;
      if (division < 2 && routes_[r].by_relay) ok = false;
      added_.emplace_back(routes_[r].pair, routes_[r].bytes);
    });
    return ok && std::ranges::all_of(added_, [&](const auto& one) { return has_room(one.first); });
  }

  // Returns true if the pair may move what added_ has for it.
  [[nodiscard]] bool has_room(std::uint32_t pair) const {
    std::int64_t moved = moved_bytes_[pair];
    const std::int64_t total = pair_bytes_[pair];
    if (options_.share == PairShare::kReached) return moved * options_.divisions < total;
    for (const auto& [other, size] : added_) moved += other == pair ? size : 0;
    return moved * options_.divisions <= total;
  }

  // Fills a division. The device with the least work in it is next, and takes its first tile that
  // fits; the last division takes the rest.
  void fill(std::int32_t division, bool is_last) {
    if (is_last) {
      for (auto& mine : waiting_) {
        for (const std::size_t t : mine) place(t, division);
        mine.clear();
      }
      return;
    }
    moved_bytes_.assign(pair_bytes_.size(), 0);
    using Load = std::pair<std::int64_t, std::size_t>;  // (pairs in the division, device)
    std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
    for (std::size_t d = 0; d < waiting_.size(); ++d) least.emplace(0, d);
    std::vector<std::size_t> next(waiting_.size());
    while (!least.empty()) {
      const auto [load, d] = least.top();
      least.pop();
      std::vector<std::size_t>& mine = waiting_[d];
      // A tile that exceeds a share does so until the division ends, whatever others bring.
      while (next[d] < mine.size() && !fits(mine[next[d]], division)) ++next[d];
      if (next[d] == mine.size()) continue;
      const std::size_t t = mine[next[d]++];
      place(t, division);
      least.emplace(load + problem_.tiles[t].pairs, d);
    }
    for (auto& mine : waiting_) {
      std::erase_if(mine, [&](std::size_t t) { return stage_[t] != kNotYet; });
    }
  }

  void move_inputs(ArrangedDirection& out) {
    // A relay has the unit a division earlier.
    for (std::size_t r = 0; r < problem_.routes.size(); ++r) {
      const UnitRoute& hop = problem_.routes[r];
      if (is_result(hop.kind) || first_use_[r] == kNotYet || hop.via == owner(hop.block)) continue;
      std::int32_t& relay = first_use_[index_.relay_of(r)];
      relay = relay == kNotYet ? first_use_[r] - 1 : std::min(relay, first_use_[r] - 1);
    }
    for (std::size_t r = 0; r < problem_.routes.size(); ++r) {
      const UnitRoute& hop = problem_.routes[r];
      if (is_result(hop.kind) || first_use_[r] == kNotYet) continue;
      out.transfers.push_back(
          {hop.kind, hop.block, hop.group, hop.via, hop.device, first_use_[r] - 1, first_use_[r]});
    }
  }

  void move_results(std::int32_t end, ArrangedDirection& out) const {
    // Stage at which the result of a route may leave.
    std::vector<std::int32_t> ready(problem_.routes.size(), kNotYet);
    const auto own = [&](std::size_t r) {
      return options_.results == ResultTiming::kEarly ? last_use_[r] + 1 : end;
    };
    const auto moves = [&](std::size_t r) {
      return is_result(problem_.routes[r].kind) && last_use_[r] != kNotYet;
    };
    for (std::size_t r = 0; r < ready.size(); ++r) {
      if (moves(r)) ready[r] = own(r);
    }
    for (std::size_t r = 0; r < ready.size(); ++r) {  // a relay waits for the partials it merges
      const UnitRoute& hop = problem_.routes[r];
      if (!moves(r) || hop.via == owner(hop.block)) continue;
      std::int32_t& relay = ready[index_.relay_of(r)];
      relay = std::max(relay, own(r) + 1);
    }
    for (std::size_t r = 0; r < ready.size(); ++r) {
      const UnitRoute& hop = problem_.routes[r];
      if (!moves(r)) continue;
      out.transfers.push_back(
          {hop.kind, hop.block, hop.group, hop.device, hop.via, ready[r], ready[r] + 1});
    }
  }

  const ScheduleProblem& problem_;
  RouteIndex index_;
  const DivisionOptions& options_;
  std::vector<std::int32_t> stage_;        // of every tile
  std::vector<InputRoute> routes_;         // of the problem's input routes
  std::vector<std::int64_t> pair_bytes_;   // total of each pair of devices
  std::vector<std::int64_t> moved_bytes_;  // of each pair, in the division being filled
  std::vector<std::pair<std::uint32_t, std::int64_t>> added_;  // scratch: pairs and their bytes
  std::vector<std::vector<std::size_t>> waiting_;              // tiles of every device, in order
  std::vector<std::int32_t> first_use_;  // of every input route: the division that needs it
  std::vector<std::int32_t> last_use_;   // of every result route
  bool relayed_ = false;
};

}  // namespace

ArrangedDirection schedule_divisions(const ScheduleProblem& problem,
                                     const DivisionOptions& options) {
  CONTEXTILE_CHECK(options.divisions >= 2, "divisions: expected at least 2, found {}",
                   options.divisions);
  return DivisionScheduler(problem, options).run();
}

}  // namespace contextile
