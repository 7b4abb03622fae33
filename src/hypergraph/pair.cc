#include "hypergraph/pair.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <utility>

namespace contextile {
namespace {

constexpr int kMaxPasses = 8;
// A pass ends this many moves after its best point: at least, and as a share of the vertices.
constexpr std::int32_t kLeastPatience = 60;
constexpr double kPatienceShare = 0.1;

// Vertices by gain, highest first; every gain may change while its vertex waits.
class GainHeap {
 public:
  void reset(std::size_t num_vertices) {
    heap_.clear();
    place_.assign(num_vertices, -1);
  }
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] std::int32_t top() const { return heap_.front().vertex; }
  [[nodiscard]] std::int64_t top_gain() const { return heap_.front().gain; }
  [[nodiscard]] bool holds(std::int32_t v) const {
    return place_[static_cast<std::size_t>(v)] >= 0;
  }

  void push(std::int32_t v, std::int64_t gain, std::uint32_t tie) {
    heap_.push_back({gain, tie, v});
    rise(heap_.size() - 1);
  }
  void add(std::int32_t v, std::int64_t change) {
    const auto i = static_cast<std::size_t>(place_[static_cast<std::size_t>(v)]);
    heap_[i].gain += change;
    if (change > 0)
      rise(i);
    else
      sink(i);
  }
  void remove(std::int32_t v) {
    const auto i = static_cast<std::size_t>(place_[static_cast<std::size_t>(v)]);
    place_[static_cast<std::size_t>(v)] = -1;
    const Item last = heap_.back();
    heap_.pop_back();
    if (i == heap_.size()) return;
    heap_[i] = last;
    place_[static_cast<std::size_t>(last.vertex)] = static_cast<std::int32_t>(i);
    rise(i);
    sink(static_cast<std::size_t>(place_[static_cast<std::size_t>(last.vertex)]));
  }

 private:
  struct Item {
    std::int64_t gain;
    std::uint32_t tie;
    std::int32_t vertex;
    [[nodiscard]] bool above(const Item& other) const {
      return std::tie(gain, tie) > std::tie(other.gain, other.tie);
    }
  };
  void put(std::size_t i, const Item& item) {
    heap_[i] = item;
    place_[static_cast<std::size_t>(item.vertex)] = static_cast<std::int32_t>(i);
  }
  void rise(std::size_t i) {
    const Item item = heap_[i];
    while (i > 0 && item.above(heap_[(i - 1) / 2])) {
      put(i, heap_[(i - 1) / 2]);
      i = (i - 1) / 2;
    }
    put(i, item);
  }
  void sink(std::size_t i) {
    const Item item = heap_[i];
    while (2 * i + 1 < heap_.size()) {
      std::size_t child = 2 * i + 1;
      if (child + 1 < heap_.size() && heap_[child + 1].above(heap_[child])) ++child;
      if (!heap_[child].above(item)) break;
      put(i, heap_[child]);
      i = child;
    }
    put(i, item);
  }

  std::vector<Item> heap_;
  std::vector<std::int32_t> place_;  // of every vertex in heap_, -1: not there
};

class PairRefinement {
 public:
  PairRefinement(const HyperLevel& level, const HyperProblem& problem,
                 std::vector<std::int32_t>& sides, FastRandom& random)
      : level_(level), problem_(problem), sides_(sides), random_(random) {
    counts_.assign(static_cast<std::size_t>(level.graph.num_nets()), {0, 0});
    for (std::int32_t v = 0; v < level.num_vertices(); ++v) {
      const std::size_t side = side_of(v);
      weight_[side] = weight_[side] + level.weight(v);
      for (const std::int32_t e : level.nets_of(v)) ++counts_of(e)[side];
    }
    const double share = kPatienceShare * level.num_vertices();
    patience_ = std::max(kLeastPatience, static_cast<std::int32_t>(share));
  }

  bool run() {
    bool changed = false;
    for (int pass = 0; pass < kMaxPasses && improve(); ++pass) changed = true;
    return changed;
  }

 private:
  [[nodiscard]] std::size_t side_of(std::int32_t v) const {
    return static_cast<std::size_t>(sides_[static_cast<std::size_t>(v)]);
  }
  [[nodiscard]] std::array<std::int32_t, 2>& counts_of(std::int32_t net) {
    return counts_[static_cast<std::size_t>(net)];
  }

  // What the cut loses when v changes sides.
  [[nodiscard]] std::int64_t gain_of(std::int32_t v) {
    const std::size_t from = side_of(v);
    std::int64_t gain = 0;
    for (const std::int32_t e : level_.nets_of(v)) {
      const auto& counts = counts_of(e);
      if (counts[from] == 1) gain += level_.net_weight(e);
      if (counts[1 - from] == 0) gain -= level_.net_weight(e);
    }
    return gain;
  }

  [[nodiscard]] double overload() const {
    return problem_.overload(0, weight_[0]) + problem_.overload(1, weight_[1]);
  }

  [[nodiscard]] bool may_move(std::int32_t v) const {
    const std::size_t to = 1 - side_of(v);
    const HyperWeight weight = level_.weight(v);
    const HyperWeight with = weight_[to] + weight;
    if (fits(with, problem_.room_of(static_cast<std::int32_t>(to)))) return true;
    const HyperWeight without = weight_[1 - to] - weight;
    return problem_.overload(static_cast<std::int32_t>(to), with) +
               problem_.overload(static_cast<std::int32_t>(1 - to), without) <
           overload();
  }

  void raise(std::int32_t v, std::int64_t change) {
    GainHeap& heap = heaps_[side_of(v)];
    if (heap.holds(v)) heap.add(v, change);
  }

  // Only nets with none or one pin on a side change anybody's gain.
  void move_and_update(std::int32_t v) {
    const std::size_t from = side_of(v);
    const std::size_t to = 1 - from;
    heaps_[from].remove(v);
    for (const std::int32_t e : level_.nets_of(v)) {
      auto& counts = counts_of(e);
      const std::int64_t weight = level_.net_weight(e);
      const auto pins = level_.graph.pins_of(e);
      if (counts[to] == 0) {
        for (const std::int32_t u : pins) raise(u, weight);
      } else if (counts[to] == 1) {
        raise_one(pins, to, v, -weight);
      }
      --counts[from];
      ++counts[to];
      if (counts[from] == 0) {
        for (const std::int32_t u : pins) raise(u, -weight);
      } else if (counts[from] == 1) {
        raise_one(pins, from, v, weight);
      }
    }
    settle(v, to);
  }

  void raise_one(std::span<const std::int32_t> pins, std::size_t side, std::int32_t except,
                 std::int64_t change) {
    for (const std::int32_t u : pins) {
      if (u == except || side_of(u) != side) continue;
      raise(u, change);
      return;
    }
  }

  void settle(std::int32_t v, std::size_t to) {
    const HyperWeight weight = level_.weight(v);
    weight_[1 - to] = weight_[1 - to] - weight;
    weight_[to] = weight_[to] + weight;
    sides_[static_cast<std::size_t>(v)] = static_cast<std::int32_t>(to);
  }

  void undo(std::int32_t v) {
    const std::size_t from = side_of(v);
    for (const std::int32_t e : level_.nets_of(v)) {
      --counts_of(e)[from];
      ++counts_of(e)[1 - from];
    }
    settle(v, 1 - from);
  }

  // The allowed move with the highest gain, -1 when there is none. What may not move now waits on
  // its heap while the other side has moves.
  [[nodiscard]] std::int32_t next_move() {
    while (true) {
      std::int32_t best = -1;
      std::int64_t best_gain = 0;
      for (GainHeap& heap : heaps_) {
        if (heap.empty() || !may_move(heap.top())) continue;
        if (best >= 0 && heap.top_gain() <= best_gain) continue;
        best = heap.top();
        best_gain = heap.top_gain();
      }
      if (best >= 0 || (heaps_[0].empty() && heaps_[1].empty())) return best;
      for (GainHeap& heap : heaps_) {
        if (!heap.empty()) heap.remove(heap.top());
      }
    }
  }

  bool improve() {
    for (GainHeap& heap : heaps_) heap.reset(sides_.size());
    for (std::int32_t v = 0; v < level_.num_vertices(); ++v) {
      if (level_.movable(v)) heaps_[side_of(v)].push(v, gain_of(v), random_.next());
    }
    std::vector<std::int32_t> moved;
    std::size_t keep = 0;
    std::int64_t gain = 0;
    std::pair<double, std::int64_t> best = {overload(), 0};
    const std::pair<double, std::int64_t> first = best;
    while (static_cast<std::int32_t>(moved.size() - keep) < patience_) {
      const std::int32_t v = next_move();
      if (v < 0) break;
      gain += heaps_[side_of(v)].top_gain();
      move_and_update(v);
      moved.push_back(v);
      const std::pair<double, std::int64_t> now = {overload(), -gain};
      if (now >= best) continue;
      best = now;
      keep = moved.size();
    }
    for (std::size_t i = moved.size(); i-- > keep;) undo(moved[i]);
    return best < first;
  }

  const HyperLevel& level_;
  const HyperProblem& problem_;
  std::vector<std::int32_t>& sides_;
  FastRandom& random_;
  std::vector<std::array<std::int32_t, 2>> counts_;  // pins of every net on both sides
  std::array<HyperWeight, 2> weight_{};
  std::array<GainHeap, 2> heaps_;
  std::int32_t patience_ = 0;
};

}  // namespace

bool refine_pair(const HyperLevel& level, const HyperProblem& problem,
                 std::vector<std::int32_t>& sides, FastRandom& random) {
  return PairRefinement(level, problem, sides, random).run();
}

}  // namespace contextile
