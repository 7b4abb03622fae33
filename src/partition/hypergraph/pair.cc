#include "partition/hypergraph/pair.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <utility>

#include "base/interrupt.h"

namespace contextile {
namespace {

constexpr int kMaxPasses = 8;
// A pass ends so many moves after its best point: the larger of this number and a share of the
// vertices.
constexpr std::int32_t kLeastPatience = 60;
constexpr double kPatienceShare = 0.1;

// Vertices by gain, highest first. The gain of a vertex may change while it waits.
class GainHeap {
 public:
  void reset(IdRange<VertexId> vertices) {
    heap_.clear();
    place_.assign(vertices, -1);
  }
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] VertexId top() const { return heap_.front().vertex; }
  [[nodiscard]] std::int64_t top_gain() const { return heap_.front().gain; }
  [[nodiscard]] bool holds(VertexId v) const { return place_[v] >= 0; }

  void push(VertexId v, std::int64_t gain, std::uint32_t tie) {
    heap_.push_back({gain, tie, v});
    rise(heap_.size() - 1);
  }
  void add(VertexId v, std::int64_t change) {
    const auto i = static_cast<std::size_t>(place_[v]);
    heap_[i].gain += change;
    if (change > 0)
      rise(i);
    else
      sink(i);
  }
  void remove(VertexId v) {
    const auto i = static_cast<std::size_t>(place_[v]);
    place_[v] = -1;
    const Item last = heap_.back();
    heap_.pop_back();
    if (i == heap_.size()) return;
    heap_[i] = last;
    place_[last.vertex] = static_cast<std::int32_t>(i);
    rise(i);
    sink(static_cast<std::size_t>(place_[last.vertex]));
  }

 private:
  struct Item {
    std::int64_t gain;
    std::uint32_t tie;
    VertexId vertex;
    [[nodiscard]] bool above(const Item& other) const {
      return std::tie(gain, tie) > std::tie(other.gain, other.tie);
    }
  };
  void put(std::size_t i, const Item& item) {
    heap_[i] = item;
    place_[item.vertex] = static_cast<std::int32_t>(i);
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
  IdVector<VertexId, std::int32_t> place_;  // in heap_; -1: not there
};

class PairRefinement {
 public:
  PairRefinement(const HyperLevel& level, const HyperProblem& problem,
                 IdVector<VertexId, PartId>& sides, FastRandom& random)
      : level_(level), problem_(problem), sides_(sides), random_(random) {
    counts_.assign(level.graph.nets(), {0, 0});
    for (const VertexId v : level.vertices()) {
      const std::size_t side = side_of(v);
      weight_[side] = weight_[side] + level.weight(v);
      for (const NetId e : level.nets_of(v)) ++counts_of(e)[side];
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
  [[nodiscard]] std::size_t side_of(VertexId v) const { return sides_[v].index(); }
  [[nodiscard]] static PartId part_of(std::size_t side) {
    return PartId{static_cast<std::int32_t>(side)};
  }
  [[nodiscard]] std::array<std::int32_t, 2>& counts_of(NetId net) { return counts_[net]; }

  // Returns the decrease of the cut if v changes sides.
  [[nodiscard]] std::int64_t gain_of(VertexId v) {
    const std::size_t from = side_of(v);
    std::int64_t gain = 0;
    for (const NetId e : level_.nets_of(v)) {
      const auto& counts = counts_of(e);
      if (counts[from] == 1) gain += level_.net_weight(e);
      if (counts[1 - from] == 0) gain -= level_.net_weight(e);
    }
    return gain;
  }

  [[nodiscard]] double overload() const {
    return problem_.overload(part_of(0), weight_[0]) + problem_.overload(part_of(1), weight_[1]);
  }

  [[nodiscard]] bool may_move(VertexId v) const {
    const std::size_t to = 1 - side_of(v);
    const HyperWeight weight = level_.weight(v);
    const HyperWeight with = weight_[to] + weight;
    if (fits(with, problem_.room_of(part_of(to)))) return true;
    const HyperWeight without = weight_[1 - to] - weight;
    return problem_.overload(part_of(to), with) + problem_.overload(part_of(1 - to), without) <
           overload();
  }

  void raise(VertexId v, std::int64_t change) {
    GainHeap& heap = heaps_[side_of(v)];
    if (heap.holds(v)) heap.add(v, change);
  }

  // Only nets with no pin or one pin on a side change the gain of a vertex.
  void move_and_update(VertexId v) {
    const std::size_t from = side_of(v);
    const std::size_t to = 1 - from;
    heaps_[from].remove(v);
    for (const NetId e : level_.nets_of(v)) {
      auto& counts = counts_of(e);
      const std::int64_t weight = level_.net_weight(e);
      const auto pins = level_.graph.pins_of(e);
      if (counts[to] == 0) {
        for (const VertexId u : pins) raise(u, weight);
      } else if (counts[to] == 1) {
        raise_one(pins, to, v, -weight);
      }
      --counts[from];
      ++counts[to];
      if (counts[from] == 0) {
        for (const VertexId u : pins) raise(u, -weight);
      } else if (counts[from] == 1) {
        raise_one(pins, from, v, weight);
      }
    }
    settle(v, to);
  }

  void raise_one(std::span<const VertexId> pins, std::size_t side, VertexId except,
                 std::int64_t change) {
    for (const VertexId u : pins) {
      if (u == except || side_of(u) != side) continue;
      raise(u, change);
      return;
    }
  }

  void settle(VertexId v, std::size_t to) {
    const HyperWeight weight = level_.weight(v);
    weight_[1 - to] = weight_[1 - to] - weight;
    weight_[to] = weight_[to] + weight;
    sides_[v] = part_of(to);
  }

  void undo(VertexId v) {
    const std::size_t from = side_of(v);
    for (const NetId e : level_.nets_of(v)) {
      --counts_of(e)[from];
      ++counts_of(e)[1 - from];
    }
    settle(v, 1 - from);
  }

  // Returns the allowed move with the highest gain, or an invalid vertex if there is none. A vertex
  // that may not move now waits on its heap while the other side has moves.
  [[nodiscard]] VertexId next_move() {
    while (true) {
      VertexId best;
      std::int64_t best_gain = 0;
      for (GainHeap& heap : heaps_) {
        if (heap.empty() || !may_move(heap.top())) continue;
        if (best.valid() && heap.top_gain() <= best_gain) continue;
        best = heap.top();
        best_gain = heap.top_gain();
      }
      if (best.valid() || (heaps_[0].empty() && heaps_[1].empty())) return best;
      for (GainHeap& heap : heaps_) {
        if (!heap.empty()) heap.remove(heap.top());
      }
    }
  }

  // Runs one pass: moves every vertex at most once, even at a loss, and undoes the moves after the
  // best point. Returns true if that point is better than the start.
  bool improve() {
    for (GainHeap& heap : heaps_) heap.reset(sides_.ids());
    for (const VertexId v : level_.vertices()) {
      if (level_.movable(v)) heaps_[side_of(v)].push(v, gain_of(v), random_.next());
    }
    std::vector<VertexId> moved;
    std::size_t keep = 0;
    std::int64_t gain = 0;
    std::pair<double, std::int64_t> best = {overload(), 0};
    const std::pair<double, std::int64_t> first = best;
    while (static_cast<std::int32_t>(moved.size() - keep) < patience_) {
      check_interrupt();
      const VertexId v = next_move();
      if (!v.valid()) break;
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
  IdVector<VertexId, PartId>& sides_;
  FastRandom& random_;
  IdVector<NetId, std::array<std::int32_t, 2>> counts_;  // pins of every net on both sides
  std::array<HyperWeight, 2> weight_{};
  std::array<GainHeap, 2> heaps_;
  std::int32_t patience_ = 0;
};

}  // namespace

bool refine_pair(const HyperLevel& level, const HyperProblem& problem,
                 IdVector<VertexId, PartId>& sides, FastRandom& random) {
  return PairRefinement(level, problem, sides, random).run();
}

}  // namespace contextile
