#include <algorithm>
#include <cstddef>

#include "partition/hypergraph/balance.h"

namespace contextile {
namespace {

// The exact search is a last resort for few vertices, where a greedy packing has no small vertices
// to fill gaps with.
constexpr std::size_t kLargestSearch = 64;
constexpr std::int64_t kSearchSteps = 2'000'000;  // parts tried

class Packing {
 public:
  Packing(const HyperLevel& level, const HyperProblem& problem)
      : level_(level), problem_(problem), parts_(level.fixed) {
    load_.resize(problem.parts());
    for (const VertexId v : level.vertices()) {
      if (level.movable(v)) {
        free_.push_back(v);
      } else {
        put(v, level.fixed[v]);
      }
    }
    std::stable_sort(free_.begin(), free_.end(), [this](VertexId a, VertexId b) {
      return problem_.share(level_.weight(a)) > problem_.share(level_.weight(b));
    });
  }

  IdVector<VertexId, PartId> run() {
    IdVector<PartId, HyperWeight> only_fixed = load_;
    bool fits_all = true;
    for (const VertexId v : free_) fits_all = place(v) && fits_all;
    if (fits_all || free_.size() > kLargestSearch) return parts_;
    IdVector<VertexId, PartId> greedy = parts_;
    load_ = std::move(only_fixed);
    return search(0) ? parts_ : greedy;
  }

 private:
  [[nodiscard]] HyperWeight& load(PartId part) { return load_[part]; }
  void put(VertexId v, PartId part) {
    parts_[v] = part;
    load(part) = load(part) + level_.weight(v);
  }
  // Returns how full a part would be with the vertex, relative to its capacity.
  [[nodiscard]] double fill(VertexId v, PartId part) {
    const HyperWeight with = load(part) + level_.weight(v);
    const HyperWeight room = problem_.room_of(part);
    const auto ratio = [](std::int64_t held, std::int64_t may) {
      return held == 0
                 ? 0
                 : static_cast<double>(held) / static_cast<double>(std::max<std::int64_t>(may, 1));
    };
    return std::max(ratio(with.compute, room.compute), ratio(with.data, room.data));
  }

  // Puts the vertex in the part that it overloads least, and among equals leaves least full.
  // Returns true if it fits there.
  bool place(VertexId v) {
    PartId best{0};
    double best_overload = -1;
    double best_fill = 0;
    for (const PartId p : problem_.parts()) {
      const double overload =
          problem_.overload(p, load(p) + level_.weight(v)) - problem_.overload(p, load(p));
      if (best_overload >= 0 && overload > best_overload) continue;
      const double filled = fill(v, p);
      if (best_overload >= 0 && overload == best_overload && filled >= best_fill) continue;
      best = p;
      best_overload = overload;
      best_fill = filled;
    }
    put(v, best);
    return best_overload == 0;
  }

  [[nodiscard]] bool same_part(PartId a, PartId b) {
    return load(a) == load(b) && problem_.room_of(a) == problem_.room_of(b);
  }

  // Searches depth first over the vertices from `next` on. Parts that look alike are tried once.
  bool search(std::size_t next) {
    if (next == free_.size()) return true;
    const VertexId v = free_[next];
    std::vector<std::pair<double, PartId>> order;
    for (const PartId p : problem_.parts()) {
      if (--steps_left_ < 0) return false;
      if (!fits(load(p) + level_.weight(v), problem_.room_of(p))) continue;
      const double filled = fill(v, p);
      const bool seen = std::any_of(order.begin(), order.end(), [&](const auto& other) {
        return other.first == filled && same_part(other.second, p);
      });
      if (!seen) order.emplace_back(filled, p);
    }
    std::sort(order.begin(), order.end());
    for (const auto& [filled, p] : order) {
      const HyperWeight before = load(p);
      put(v, p);
      if (search(next + 1)) return true;
      load(p) = before;
      if (steps_left_ < 0) return false;
    }
    return false;
  }

  const HyperLevel& level_;
  const HyperProblem& problem_;
  IdVector<VertexId, PartId> parts_;
  IdVector<PartId, HyperWeight> load_;
  std::vector<VertexId> free_;  // heaviest first
  std::int64_t steps_left_ = kSearchSteps;
};

}  // namespace

IdVector<VertexId, PartId> pack(const HyperLevel& level, const HyperProblem& problem) {
  return Packing(level, problem).run();
}

}  // namespace contextile
