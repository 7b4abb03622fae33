#include "partition/hypergraph/balance.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

#include "base/interrupt.h"

namespace contextile {
namespace {

// A gain below this share of a part's fair load is rounding, not progress.
constexpr double kLeastProgress = 1e-12;
constexpr int kMaxRounds = 24;
// With more parts, a vertex considers only its neighbours' parts and the emptiest ones.
constexpr std::int32_t kFewParts = 64;
constexpr std::size_t kEmptiestParts = 16;
constexpr std::int64_t kPairsForSwap = 20'000;  // compared for one swap, if there are more
constexpr std::int64_t kMaxPairs = 4'000'000;   // compared in all
constexpr std::size_t kCostedPairs = 16;

// Returns the price of a move or swap by its cost and the overload it removes. Gains come first,
// then the cheapest cost per overload removed.
double price(double cost, double removed) { return cost > 0 ? cost / removed : cost; }

struct Shedding {
  double price;
  VertexId vertex;
  PartId to;
  friend auto operator<=>(const Shedding&, const Shedding&) = default;
};

struct Swap {
  double removed;
  VertexId first;
  VertexId second;
};

class Repair {
 public:
  Repair(HyperState& state, FastRandom& random)
      : state_(state), problem_(state.problem()), random_(random), affinity_(problem_) {}

  bool run() {
    for (int round = 0; round < kMaxRounds; ++round) {
      const std::vector<PartId> overloaded = overloaded_parts();
      if (overloaded.empty()) return true;
      find_emptiest();
      bool progress = false;
      for (const PartId part : overloaded) progress = shed(part) || progress;
      if (progress) continue;
      for (const PartId part : overloaded) progress = swap_out(part) || progress;
      if (!progress) return false;
    }
    return overloaded_parts().empty();
  }

 private:
  [[nodiscard]] double overload_of(PartId part) const {
    return problem_.overload(part, state_.part_weight(part));
  }

  [[nodiscard]] std::vector<PartId> overloaded_parts() const {
    std::vector<PartId> parts;
    for (const PartId p : problem_.parts()) {
      if (overload_of(p) > 0) parts.push_back(p);
    }
    std::stable_sort(parts.begin(), parts.end(),
                     [this](PartId a, PartId b) { return overload_of(a) > overload_of(b); });
    return parts;
  }

  [[nodiscard]] std::vector<VertexId> movable_vertices(PartId part) const {
    std::vector<VertexId> vertices;
    for (const VertexId v : state_.level().vertices()) {
      if (state_.part(v) == part && state_.level().movable(v)) vertices.push_back(v);
    }
    return vertices;
  }

  // Finds the emptiest parts in compute and the emptiest in data.
  void find_emptiest() {
    emptiest_.clear();
    if (problem_.num_parts <= kFewParts) return;
    std::vector<PartId> parts;
    for (const PartId p : problem_.parts()) parts.push_back(p);
    const auto keep_most_room = [&](auto room) {
      std::partial_sort(
          parts.begin(), parts.begin() + kEmptiestParts, parts.end(),
          [&](PartId a, PartId b) { return std::pair(-room(a), a) < std::pair(-room(b), b); });
      emptiest_.insert(emptiest_.end(), parts.begin(), parts.begin() + kEmptiestParts);
    };
    keep_most_room([this](PartId p) {
      return static_cast<double>(problem_.room_of(p).compute) -
             static_cast<double>(state_.part_weight(p).compute);
    });
    keep_most_room([this](PartId p) {
      return static_cast<double>(problem_.room_of(p).data) -
             static_cast<double>(state_.part_weight(p).data);
    });
  }

  // Returns the best target of a vertex; `to` is invalid if no move of the vertex lowers the
  // overload. Cost is connectivity.
  [[nodiscard]] Shedding best_move(VertexId v) {
    affinity_.measure(state_, v);
    Shedding best = {0, v, PartId{}};
    const auto consider_target = [&](PartId to) {
      if (to == state_.part(v)) return;
      const double removed = -state_.overload_delta(v, to);
      if (removed < kLeastProgress) return;
      const Shedding candidate = {price(static_cast<double>(affinity_.cost(to)), removed), v, to};
      if (!best.to.valid() || candidate < best) best = candidate;
    };
    if (problem_.num_parts <= kFewParts) {
      for (const PartId p : problem_.parts()) consider_target(p);
    } else {
      for (const PartId p : affinity_.parts()) consider_target(p);
      for (const PartId p : emptiest_) consider_target(p);
    }
    return best;
  }

  // Moves vertices out of the part until it fits.
  bool shed(PartId part) {
    std::vector<Shedding> candidates;
    for (const VertexId v : movable_vertices(part)) {
      check_interrupt();
      const Shedding candidate = best_move(v);
      if (candidate.to.valid()) candidates.push_back(candidate);
    }
    std::sort(candidates.begin(), candidates.end());
    bool progress = false;
    for (const Shedding& candidate : candidates) {
      if (overload_of(part) == 0) break;
      // Earlier moves may have filled the target.
      const Shedding now = best_move(candidate.vertex);
      if (!now.to.valid()) continue;
      state_.move(now.vertex, now.to);
      progress = true;
    }
    return progress;
  }

  [[nodiscard]] double removed_by_swap(VertexId v, VertexId u) const {
    const PartId a = state_.part(v);
    const PartId b = state_.part(u);
    const HyperWeight difference = state_.level().weight(u) - state_.level().weight(v);
    return overload_of(a) - problem_.overload(a, state_.part_weight(a) + difference) +
           overload_of(b) - problem_.overload(b, state_.part_weight(b) - difference);
  }

  // Keeps the kCostedPairs swaps that remove the most overload.
  void consider(std::vector<Swap>& best, VertexId v, VertexId u) const {
    if (state_.part(u) == state_.part(v) || !state_.level().movable(u)) return;
    const double removed = removed_by_swap(v, u);
    if (removed < kLeastProgress) return;
    const auto removes_more = [](const Swap& a, const Swap& b) {
      return std::tuple(-a.removed, a.first, a.second) < std::tuple(-b.removed, b.first, b.second);
    };
    const Swap swap = {removed, v, u};
    if (best.size() == kCostedPairs && !removes_more(swap, best.back())) return;
    best.insert(std::upper_bound(best.begin(), best.end(), swap, removes_more), swap);
    if (best.size() > kCostedPairs) best.pop_back();
  }

  [[nodiscard]] std::vector<Swap> best_swaps(PartId part) {
    const std::vector<VertexId> vertices = movable_vertices(part);
    const std::int32_t all = state_.level().num_vertices();
    std::vector<Swap> best;
    if (static_cast<std::int64_t>(vertices.size()) * all <= kPairsForSwap) {
      pairs_left_ -= static_cast<std::int64_t>(vertices.size()) * all;
      for (const VertexId v : vertices) {
        for (const VertexId u : state_.level().vertices()) consider(best, v, u);
      }
      return best;
    }
    // With too many pairs to compare, a random sample is enough.
    pairs_left_ -= kPairsForSwap;
    for (std::int64_t pair = 0; pair < kPairsForSwap; ++pair) {
      const VertexId v = random_.pick(vertices);
      consider(best, v, VertexId{random_.below(all)});
    }
    return best;
  }

  [[nodiscard]] double cost_of_swap(const Swap& swap) {
    const PartId a = state_.part(swap.first);
    const PartId b = state_.part(swap.second);
    const double first = state_.delta(swap.first, b).total();
    state_.move(swap.first, b);
    const double second = state_.delta(swap.second, a).total();
    state_.move(swap.first, a);
    return first + second;
  }

  bool swap_out(PartId part) {
    bool progress = false;
    while (overload_of(part) > 0 && pairs_left_ > 0) {
      check_interrupt();
      const std::vector<Swap> swaps = best_swaps(part);
      if (swaps.empty()) break;
      const Swap* best = nullptr;
      double best_price = 0;
      for (const Swap& swap : swaps) {
        // A swap that removes far less than the best one would need too many of its kind.
        if (swap.removed < 0.5 * swaps.front().removed) break;
        const double candidate = price(cost_of_swap(swap), swap.removed);
        if (best != nullptr && candidate >= best_price) continue;
        best = &swap;
        best_price = candidate;
      }
      const PartId a = state_.part(best->first);
      const PartId b = state_.part(best->second);
      state_.move(best->first, b);
      state_.move(best->second, a);
      progress = true;
    }
    return progress;
  }

  HyperState& state_;
  const HyperProblem& problem_;
  FastRandom& random_;
  Affinity affinity_;
  std::vector<PartId> emptiest_;
  std::int64_t pairs_left_ = kMaxPairs;
};

}  // namespace

bool repair(HyperState& state, FastRandom& random) { return Repair(state, random).run(); }

}  // namespace contextile
