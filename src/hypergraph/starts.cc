#include "hypergraph/starts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/fast_random.h"
#include "hypergraph/balance.h"
#include "hypergraph/state.h"

namespace contextile {
namespace {

// Larger nets connect everything with everything: following them is not being near.
constexpr std::size_t kLargestFollowedNet = 1000;
constexpr int kSampledParts = 32;

// All vertices, breadth first along nets from random ones.
std::vector<std::int32_t> neighbour_order(const HyperLevel& level, FastRandom& random) {
  const auto num_vertices = static_cast<std::size_t>(level.num_vertices());
  std::vector<std::int32_t> roots(num_vertices);
  std::iota(roots.begin(), roots.end(), 0);
  for (std::size_t i = num_vertices; i > 1; --i) {
    std::swap(roots[i - 1],
              roots[static_cast<std::size_t>(random.below(static_cast<std::int32_t>(i)))]);
  }
  std::vector<bool> seen(num_vertices, false);
  std::vector<bool> followed(static_cast<std::size_t>(level.graph.num_nets()), false);
  std::vector<std::int32_t> order;
  order.reserve(num_vertices);
  const auto reach = [&](std::int32_t v) {
    if (seen[static_cast<std::size_t>(v)]) return;
    seen[static_cast<std::size_t>(v)] = true;
    order.push_back(v);
  };
  for (const std::int32_t root : roots) {
    std::size_t next = order.size();
    reach(root);
    for (; next < order.size(); ++next) {
      for (const std::int32_t e : level.nets_of(order[next])) {
        const auto pins = level.graph.pins_of(e);
        if (followed[static_cast<std::size_t>(e)] || pins.size() > kLargestFollowedNet) continue;
        followed[static_cast<std::size_t>(e)] = true;
        for (const std::int32_t u : pins) reach(u);
      }
    }
  }
  return order;
}

// Parts get equal stretches of the order, measured in the mean of both dimensions.
std::vector<std::int32_t> fill_in_order(const HyperLevel& level, const HyperProblem& problem,
                                        std::span<const std::int32_t> order) {
  const auto size = [&](std::int32_t v) {
    const HyperWeight weight = level.weight(v);
    return problem.per_compute * static_cast<double>(weight.compute) +
           problem.per_data * static_cast<double>(weight.data);
  };
  double total = 0;
  for (const std::int32_t v : order) total += level.movable(v) ? size(v) : 0;
  std::vector<std::int32_t> parts = level.fixed;
  double filled = 0;
  for (const std::int32_t v : order) {
    if (!level.movable(v)) continue;
    const double middle = filled + size(v) / 2;
    filled += size(v);
    const double place = total > 0 ? middle / total * problem.num_parts : 0;
    parts[static_cast<std::size_t>(v)] =
        std::min(problem.num_parts - 1, static_cast<std::int32_t>(place));
  }
  return parts;
}

// Vertices in neighbour order go where most of their nets already are, among the parts with room.
class Growing {
 public:
  Growing(const HyperLevel& level, const HyperProblem& problem, FastRandom& random)
      : level_(level),
        problem_(problem),
        random_(random),
        counts_(level.graph, problem.num_parts),
        parts_(level.fixed),
        load_(static_cast<std::size_t>(problem.num_parts)),
        shared_(static_cast<std::size_t>(problem.num_parts), 0) {}

  std::vector<std::int32_t> run() {
    for (std::int32_t v = 0; v < level_.num_vertices(); ++v) {
      if (!level_.movable(v)) put(v, parts_[static_cast<std::size_t>(v)]);
    }
    for (const std::int32_t v : neighbour_order(level_, random_)) {
      if (!level_.movable(v)) continue;
      const std::int32_t part = nearest_part(v);
      put(v, part >= 0 ? part : emptiest_part(v));
    }
    return parts_;
  }

 private:
  void put(std::int32_t v, std::int32_t part) {
    parts_[static_cast<std::size_t>(v)] = part;
    HyperWeight& load = load_[static_cast<std::size_t>(part)];
    load = load + level_.weight(v);
    for (const std::int32_t e : level_.nets_of(v)) counts_.add(e, part);
  }

  std::int32_t nearest_part(std::int32_t v) {
    touched_.clear();
    for (const std::int32_t e : level_.nets_of(v)) {
      counts_.for_each_part(e, [&](std::int32_t p) {
        std::int64_t& shared = shared_[static_cast<std::size_t>(p)];
        if (shared == 0) touched_.push_back(p);
        shared += level_.net_weight(e);
      });
    }
    std::int32_t best = -1;
    std::int64_t most = 0;
    for (const std::int32_t p : touched_) {
      const std::int64_t shared = std::exchange(shared_[static_cast<std::size_t>(p)], 0);
      const HyperWeight with = load_[static_cast<std::size_t>(p)] + level_.weight(v);
      if (shared <= most || !fits(with, problem_.room_of(p))) continue;
      best = p;
      most = shared;
    }
    return best;
  }

  std::int32_t emptiest_part(std::int32_t v) {
    const bool all = problem_.num_parts <= kSampledParts;
    std::int32_t best = -1;
    std::pair<double, double> best_rank;
    for (std::int32_t i = 0; i < std::min(problem_.num_parts, kSampledParts); ++i) {
      const std::int32_t p = all ? i : random_.below(problem_.num_parts);
      const HyperWeight with = load_[static_cast<std::size_t>(p)] + level_.weight(v);
      const std::pair rank = {problem_.overload(p, with), problem_.share(with)};
      if (best >= 0 && rank >= best_rank) continue;
      best = p;
      best_rank = rank;
    }
    return best;
  }

  const HyperLevel& level_;
  const HyperProblem& problem_;
  FastRandom& random_;
  NetCounts counts_;
  std::vector<std::int32_t> parts_;
  std::vector<HyperWeight> load_;
  std::vector<std::int64_t> shared_;
  std::vector<std::int32_t> touched_;
};

}  // namespace

std::vector<std::int32_t> make_start(const HyperLevel& level, const HyperProblem& problem,
                                     std::int32_t index, std::uint64_t seed) {
  FastRandom random(seed + static_cast<std::uint64_t>(index));
  switch (index % 4) {
    case 0:
      return Growing(level, problem, random).run();
    case 1:
      return pack(level, problem);
    case 2:
      return fill_in_order(level, problem, neighbour_order(level, random));
    default: {
      std::vector<std::int32_t> order(static_cast<std::size_t>(level.num_vertices()));
      std::iota(order.begin(), order.end(), 0);
      std::rotate(order.begin(),
                  order.begin() + (order.empty() ? 0 : random.below(level.num_vertices())),
                  order.end());
      return fill_in_order(level, problem, order);
    }
  }
}

}  // namespace contextile
