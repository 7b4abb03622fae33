#include <algorithm>
#include <cstddef>

#include "hypergraph/balance.h"

namespace contextile {
namespace {

// The exact search: a last resort for few vertices, where a greedy packing has no tails to fill
// gaps with.
constexpr std::size_t kLargestSearch = 64;
constexpr std::int64_t kSearchSteps = 2'000'000;  // parts looked at

class Packing {
 public:
  Packing(const HyperLevel& level, const HyperProblem& problem)
      : level_(level), problem_(problem), parts_(level.fixed) {
    load_.resize(static_cast<std::size_t>(problem.num_parts));
    for (std::int32_t v = 0; v < level.num_vertices(); ++v) {
      if (level.movable(v)) {
        free_.push_back(v);
      } else {
        put(v, level.fixed[static_cast<std::size_t>(v)]);
      }
    }
    std::stable_sort(free_.begin(), free_.end(), [this](std::int32_t a, std::int32_t b) {
      return problem_.share(level_.weight(a)) > problem_.share(level_.weight(b));
    });
  }

  std::vector<std::int32_t> run() {
    std::vector<HyperWeight> only_fixed = load_;
    bool fits_all = true;
    for (const std::int32_t v : free_) fits_all = place(v) && fits_all;
    if (fits_all || free_.size() > kLargestSearch) return parts_;
    std::vector<std::int32_t> greedy = parts_;
    load_ = std::move(only_fixed);
    return search(0) ? parts_ : greedy;
  }

 private:
  [[nodiscard]] HyperWeight& load(std::int32_t part) {
    return load_[static_cast<std::size_t>(part)];
  }
  void put(std::int32_t v, std::int32_t part) {
    parts_[static_cast<std::size_t>(v)] = part;
    load(part) = load(part) + level_.weight(v);
  }
  // How full a part would be with the vertex, relative to what it may hold.
  [[nodiscard]] double fill(std::int32_t v, std::int32_t part) {
    const HyperWeight with = load(part) + level_.weight(v);
    const HyperWeight room = problem_.room_of(part);
    const auto ratio = [](std::int64_t held, std::int64_t may) {
      return held == 0
                 ? 0
                 : static_cast<double>(held) / static_cast<double>(std::max<std::int64_t>(may, 1));
    };
    return std::max(ratio(with.compute, room.compute), ratio(with.data, room.data));
  }

  bool place(std::int32_t v) {
    std::int32_t best = 0;
    double best_overload = -1;
    double best_fill = 0;
    for (std::int32_t p = 0; p < problem_.num_parts; ++p) {
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

  [[nodiscard]] bool same_part(std::int32_t a, std::int32_t b) {
    return load(a) == load(b) && problem_.room_of(a) == problem_.room_of(b);
  }

  // Depth first over the vertices from `next` on; parts that look alike are tried once.
  bool search(std::size_t next) {
    if (next == free_.size()) return true;
    const std::int32_t v = free_[next];
    std::vector<std::pair<double, std::int32_t>> order;
    for (std::int32_t p = 0; p < problem_.num_parts; ++p) {
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
  std::vector<std::int32_t> parts_;
  std::vector<HyperWeight> load_;
  std::vector<std::int32_t> free_;  // heaviest first
  std::int64_t steps_left_ = kSearchSteps;
};

}  // namespace

std::vector<std::int32_t> pack(const HyperLevel& level, const HyperProblem& problem) {
  return Packing(level, problem).run();
}

}  // namespace contextile
