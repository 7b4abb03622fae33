#include "strategy/schedule/timeline.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "strategy/schedule/route_index.h"

namespace contextile {
namespace {

constexpr std::int32_t kNever = -1;
constexpr double kBytesPerUsOfGbytes = 1e3;  // 1 GB/s = 1000 bytes/µs
// A transfer with less than this share of a slot left to move is complete in that slot.
constexpr double kRest = 0.02;

// The network's view of a route.
struct Hop {
  double us = 0;  // alone at full rate
  std::size_t out = 0;
  std::size_t in = 0;  // the two ports it crosses
  double deadline_us = std::numeric_limits<double>::infinity();
  std::size_t feed = kNoRoute;  // the relay's own route
  std::int32_t tiles_left = 0;  // of a result: tiles and other routes that have yet to add to it
  // Slots: the first in which the sender has it, and the first and the last in which bytes move.
  std::int32_t at_hand = kNever;
  std::int32_t first = kNever;
  std::int32_t last = kNever;
  double left_us = 0;
};

// A tile of a device that has all of its inputs; the best is first.
struct ReadyTile {
  double complete_us = 0;  // deadline of the last input of the result
  std::size_t result = kNoRoute;
  std::size_t index = 0;
  bool operator>(const ReadyTile& other) const {
    return std::tie(complete_us, result, index) >
           std::tie(other.complete_us, other.result, other.index);
  }
};
using ReadyQueue = std::priority_queue<ReadyTile, std::vector<ReadyTile>, std::greater<>>;

class Timeline {
 public:
  Timeline(const ScheduleProblem& problem, std::span<const double> tile_us, const Cluster& cluster,
           const TimelineOptions& options)
      : problem_(problem),
        tile_us_(tile_us),
        cluster_(cluster),
        options_(options),
        index_(problem),
        hops_(problem.routes.size()),
        waits_(problem.tiles.size(), 0),
        result_(problem.tiles.size(), kNoRoute),
        stage_(problem.tiles.size(), kNever) {
    index_routes();
    index_tiles();
  }

  ArrangedDirection run() {
    set_slot_length();
    set_deadlines();
    for (std::size_t t = 0; t < problem_.tiles.size(); ++t) {
      if (waits_[t] == 0) make_ready(t);
    }
    for (std::size_t r = 0; r < hops_.size(); ++r) {
      if (!is_result(route(r).kind) && hops_[r].feed == kNoRoute && used_[r]) enter(r, 0);
    }
    std::size_t left = problem_.tiles.size();
    std::int32_t slot = 0;
    // In every slot transfers use what was complete before it, then tiles run, and only then do the
    // transfers of the slot count as arrived.
    for (; left > 0 || !waiting_.empty() || !entering_.empty(); ++slot) {
      move(slot);
      left -= compute(slot);
      arrive();
    }
    return arranged();
  }

 private:
  [[nodiscard]] const UnitRoute& route(std::size_t r) const { return problem_.routes[r]; }
  void index_routes() {
    const auto devices = static_cast<std::size_t>(problem_.num_devices);
    const auto nics = static_cast<std::size_t>(cluster_.nics_per_node);
    ports_us_.assign(2 * devices + 2 * nics * static_cast<std::size_t>(cluster_.nodes), 0);
    fed_.resize(hops_.size());
    for (std::size_t r = 0; r < hops_.size(); ++r) {
      const UnitRoute& at = route(r);
      Hop& hop = hops_[r];
      hop.feed = index_.relay_of(r);
      if (hop.feed != kNoRoute) fed_[hop.feed].push_back(r);
      const Rank src = is_result(at.kind) ? at.device : at.via;
      const Rank dst = is_result(at.kind) ? at.via : at.device;
      const auto bytes = static_cast<double>(problem_.bytes_of(
          at.kind, at.block, is_result(at.kind) ? options_.partial_wire : problem_.shape.dtype));
      if (cluster_.node_of(src) == cluster_.node_of(dst)) {
        hop.us = bytes / (cluster_.intra_gbytes_per_s * kBytesPerUsOfGbytes);
        hop.out = src.index();
        hop.in = devices + dst.index();
      } else {
        hop.us = bytes * cluster_.nics_per_node /
                 (cluster_.inter_gbytes_per_s_per_node * kBytesPerUsOfGbytes);
        hop.out = 2 * devices + nic(src);
        hop.in = 2 * devices + nics * static_cast<std::size_t>(cluster_.nodes) + nic(dst);
      }
      hop.left_us = hop.us;
    }
  }
  [[nodiscard]] std::size_t nic(Rank device) const {
    return static_cast<std::size_t>(cluster_.node_of(device) * cluster_.nics_per_node +
                                    cluster_.nic_of(device));
  }

  template <typename Visit>
  void for_each_route(std::size_t t, bool results, const Visit& visit) const {
    index_.for_each(t, results, visit);
  }

  void index_tiles() {
    used_.assign(hops_.size(), false);
    unlocks_.resize(hops_.size());
    mine_.resize(static_cast<std::size_t>(problem_.num_devices));
    for (std::size_t t = 0; t < problem_.tiles.size(); ++t) {
      mine_[problem_.tiles[t].device.index()].push_back(t);
      for_each_route(t, false, [&](std::size_t r) {
        ++waits_[t];
        unlocks_[r].push_back(t);
        use(r);
      });
      for_each_route(t, true, [&](std::size_t r) {
        ++hops_[r].tiles_left;
        result_[t] = r;
        use(r);
      });
    }
    for (std::size_t r = 0; r < hops_.size(); ++r) {
      if (used_[r] && is_result(route(r).kind) && hops_[r].feed != kNoRoute) {
        ++hops_[hops_[r].feed].tiles_left;
      }
    }
  }
  // Marks a route as used, with the hops before (inputs) or after it (results).
  void use(std::size_t r) {
    for (; r != kNoRoute && !used_[r]; r = hops_[r].feed) used_[r] = true;
  }

  void set_slot_length() {
    double longest_us = 0;
    for (const std::vector<std::size_t>& mine : mine_) {
      double us = 0;
      for (const std::size_t t : mine) us += tile_us_[t];
      longest_us = std::max(longest_us, us);
    }
    for (std::size_t r = 0; r < hops_.size(); ++r) {
      if (!used_[r]) continue;
      ports_us_[hops_[r].out] += hops_[r].us;
      ports_us_[hops_[r].in] += hops_[r].us;
    }
    longest_us = std::max(longest_us, *std::max_element(ports_us_.begin(), ports_us_.end()));
    slot_us_ = std::max(1e-9, longest_us / options_.slots);
    end_us_ = longest_us;
  }

  // Sets deadlines. An input's is the time when its device would run out of tiles, if inputs come
  // in the order of tiles: first those that others wait for, then those whose results must travel.
  void set_deadlines() {
    for (std::vector<std::size_t>& mine : mine_) {
      order_by_rank(problem_, mine, [&](std::size_t t) {
        bool forwards = false;
        for_each_route(t, false, [&](std::size_t r) { forwards = forwards || !fed_[r].empty(); });
        return forwards ? 0 : result_[t] != kNoRoute ? 1 : 2;
      });
      double ready_us = 0;
      for (const std::size_t t : mine) {
        if (waits_[t] == 0) ready_us += tile_us_[t];
      }
      for (const std::size_t t : mine) {
        if (waits_[t] == 0) continue;
        for_each_route(t, false, [&](std::size_t r) {
          if (hops_[r].deadline_us < std::numeric_limits<double>::infinity()) return;
          hops_[r].deadline_us = ready_us;
        });
        ready_us += tile_us_[t];
      }
    }
    for (std::size_t r = 0; r < hops_.size(); ++r) {
      if (is_result(route(r).kind)) {
        hops_[r].deadline_us = end_us_ - (hops_[r].feed == kNoRoute ? 0 : hops_[r].us);
      }
    }
    // A relay needs an input early enough to pass it on.
    for (std::size_t r = 0; r < hops_.size(); ++r) {
      if (is_result(route(r).kind)) continue;
      for (const std::size_t next : fed_[r]) {
        hops_[r].deadline_us =
            std::min(hops_[r].deadline_us, hops_[next].deadline_us - hops_[next].us - slot_us_);
      }
    }
    // A result can be complete when the last input of its tiles is there.
    complete_us_.assign(hops_.size(), 0);
    for (std::size_t t = 0; t < problem_.tiles.size(); ++t) {
      if (result_[t] == kNoRoute) continue;
      for_each_route(t, false, [&](std::size_t r) {
        complete_us_[result_[t]] = std::max(complete_us_[result_[t]], hops_[r].deadline_us);
      });
    }
    ready_.resize(mine_.size());
    clock_us_.assign(mine_.size(), 0);
  }

  void make_ready(std::size_t t) {
    const std::size_t result = result_[t];
    const double complete_us =
        result == kNoRoute ? std::numeric_limits<double>::infinity() : complete_us_[result];
    ready_[problem_.tiles[t].device.index()].push({complete_us, result, t});
  }

  // Lets the hop move from this slot on.
  void enter(std::size_t r, std::int32_t slot) {
    hops_[r].at_hand = slot;
    entering_.push_back(r);
  }

  // Moves the bytes of one slot: hops take the capacity of their ports in the order of deadlines.
  void move(std::int32_t slot) {
    const auto earlier = [&](std::size_t a, std::size_t b) {
      return std::tie(hops_[a].deadline_us, a) < std::tie(hops_[b].deadline_us, b);
    };
    std::sort(entering_.begin(), entering_.end(), earlier);
    const auto middle = static_cast<std::ptrdiff_t>(waiting_.size());
    waiting_.insert(waiting_.end(), entering_.begin(), entering_.end());
    entering_.clear();
    std::inplace_merge(waiting_.begin(), waiting_.begin() + middle, waiting_.end(), earlier);
    std::fill(ports_us_.begin(), ports_us_.end(), slot_us_);
    std::size_t kept = 0;
    for (const std::size_t r : waiting_) {
      Hop& hop = hops_[r];
      const double us = std::min({hop.left_us, ports_us_[hop.out], ports_us_[hop.in]});
      if (us > kRest * slot_us_ || us == hop.left_us) {
        ports_us_[hop.out] -= us;
        ports_us_[hop.in] -= us;
        hop.left_us -= us;
        if (hop.first == kNever) hop.first = slot;
      }
      if (hop.left_us <= kRest * slot_us_ && hop.first != kNever) {
        hop.last = slot;
        arrived_.push_back(r);
      } else {
        waiting_[kept++] = r;
      }
    }
    waiting_.resize(kept);
  }

  // Runs the ready tiles of one slot. Returns the number of tiles.
  std::size_t compute(std::int32_t slot) {
    std::size_t count = 0;
    const double begin_us = slot_us_ * slot;
    for (std::size_t d = 0; d < ready_.size(); ++d) {
      double& clock_us = clock_us_[d];
      clock_us = std::max(clock_us, begin_us);
      // A tile that ends well after the slot waits for the next one.
      while (!ready_[d].empty() && clock_us < begin_us + 0.999 * slot_us_) {
        const std::size_t t = ready_[d].top().index;
        ready_[d].pop();
        stage_[t] = slot;
        clock_us += tile_us_[t];
        ++count;
        for_each_route(t, true, [&](std::size_t r) { complete_one(r, slot + 1); });
      }
    }
    return count;
  }
  // Notes that a tile, or a hop before it, has added to a result that travels.
  void complete_one(std::size_t r, std::int32_t slot) {
    Hop& hop = hops_[r];
    hop.at_hand = std::max(hop.at_hand, slot);
    if (--hop.tiles_left == 0) enter(r, hop.at_hand);
  }

  // Makes units that arrived in this slot available in the next one.
  void arrive() {
    for (const std::size_t r : arrived_) {
      const std::int32_t next = hops_[r].last + 1;
      if (is_result(route(r).kind)) {
        if (hops_[r].feed != kNoRoute) complete_one(hops_[r].feed, next);
        continue;
      }
      for (const std::size_t fed : fed_[r]) {
        if (used_[fed]) enter(fed, next);
      }
      for (const std::size_t t : unlocks_[r]) {
        if (--waits_[t] == 0) make_ready(t);
      }
    }
    arrived_.clear();
  }

  // Returns the slot in which the transfer's bytes begin to move, or a slot up to ahead - 1 before
  // it.
  [[nodiscard]] std::int32_t launch_of(std::size_t r) const {
    return std::max(hops_[r].at_hand, hops_[r].first - (options_.ahead - 1));
  }
  // Returns the stage that waits for a transfer, so late that no device waits before it must. An
  // input is needed when a tile or a relayed hop takes it; a result when it is passed on, or some
  // slots after it should have arrived.
  [[nodiscard]] std::int32_t need_of(std::size_t r) const {
    constexpr std::int32_t kPatience = 2;
    if (is_result(route(r).kind)) {
      const std::size_t next = hops_[r].feed;
      return next == kNoRoute ? hops_[r].last + 1 + kPatience : launch_of(next);
    }
    std::int32_t need = std::numeric_limits<std::int32_t>::max();
    for (const std::size_t t : unlocks_[r]) need = std::min(need, stage_[t]);
    for (const std::size_t next : fed_[r]) {
      if (used_[next]) need = std::min(need, launch_of(next));
    }
    return need;
  }

  [[nodiscard]] ArrangedDirection arranged() const {
    ArrangedDirection out;
    // Stages at which a device waits or launches.
    std::vector<std::vector<std::int32_t>> stops(mine_.size());
    for (std::size_t r = 0; r < hops_.size(); ++r) {
      if (!used_[r]) continue;
      const UnitRoute& at = route(r);
      const bool result = is_result(at.kind);
      out.transfers.push_back({at.kind, at.block, at.group, result ? at.device : at.via,
                               result ? at.via : at.device, launch_of(r), need_of(r)});
      const Transfer& transfer = out.transfers.back();
      for (const Rank end : {transfer.src, transfer.dst}) {
        stops[end.index()].push_back(transfer.launch_stage);
        stops[end.index()].push_back(transfer.need_stage);
      }
    }
    out.tiles.reserve(problem_.tiles.size());
    for (std::size_t d = 0; d < mine_.size(); ++d) {
      stops[d].push_back(0);
      std::sort(stops[d].begin(), stops[d].end());
      for (const std::size_t t : mine_[d]) {
        out.tiles.push_back(problem_.tiles[t]);
        // Slots between two stops are one attention call.
        out.tiles.back().stage =
            *std::prev(std::upper_bound(stops[d].begin(), stops[d].end(), stage_[t]));
      }
    }
    return out;
  }

  const ScheduleProblem& problem_;
  std::span<const double> tile_us_;
  const Cluster& cluster_;
  TimelineOptions options_;
  RouteIndex index_;
  double slot_us_ = 0;
  double end_us_ = 0;
  std::vector<Hop> hops_;                          // of every route
  std::vector<std::vector<std::size_t>> fed_;      // routes that a relay's route feeds
  std::vector<std::vector<std::size_t>> unlocks_;  // tiles that need a route
  std::vector<bool> used_;
  std::vector<double> complete_us_;             // of a result: deadline of its last input
  std::vector<std::vector<std::size_t>> mine_;  // tiles of every device
  std::vector<std::int32_t> waits_;             // inputs a tile still waits for
  std::vector<std::size_t> result_;             // of a tile: its result that must travel, if any
  std::vector<std::int32_t> stage_;
  std::vector<ReadyQueue> ready_;      // of every device
  std::vector<double> clock_us_;       // when a device has finished the tiles it began
  std::vector<double> ports_us_;       // capacity left in the slot
  std::vector<std::size_t> waiting_;   // hops on their way or ready to go, by deadline
  std::vector<std::size_t> entering_;  // hops that join waiting_ in the next slot
  std::vector<std::size_t> arrived_;   // in the current slot
};

}  // namespace

ArrangedDirection schedule_timeline(const ScheduleProblem& problem, std::span<const double> tile_us,
                                    const Cluster& cluster, const TimelineOptions& options) {
  CONTEXTILE_CHECK(options.slots >= 1, "schedule: expected at least 1 slot, found {}",
                   options.slots);
  CONTEXTILE_CHECK(options.ahead >= 1, "schedule: expected at least 1 slot ahead, found {}",
                   options.ahead);
  CONTEXTILE_CHECK(tile_us.size() == problem.tiles.size(),
                   "schedule: expected the costs of {} tiles, found {}", problem.tiles.size(),
                   tile_us.size());
  return Timeline(problem, tile_us, cluster, options).run();
}

}  // namespace contextile
