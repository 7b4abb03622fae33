#include "partition/hypergraph/graph_starts.h"

#include <algorithm>
#include <utility>

#include "base/fast_random.h"
#include "partition/hypergraph/balance.h"
#include "partition/hypergraph/graph_state.h"

namespace contextile {
namespace {

// Larger nets connect everything with everything, so that following them does not lead to
// neighbours.
constexpr std::size_t kLargestFollowedNet = 1000;
constexpr int kSampledParts = 32;

std::vector<VertexId> in_order(const HyperLevel& level) {
  std::vector<VertexId> order;
  order.reserve(level.vertices().size());
  for (const VertexId v : level.vertices()) order.push_back(v);
  return order;
}

// Returns all vertices, breadth first along nets from random ones.
std::vector<VertexId> neighbour_order(const HyperLevel& level, FastRandom& random) {
  std::vector<VertexId> roots = in_order(level);
  random.shuffle(roots);
  IdVector<VertexId, bool> seen(level.vertices(), false);
  IdVector<NetId, bool> followed(level.graph.nets(), false);
  std::vector<VertexId> order;
  order.reserve(roots.size());
  const auto reach = [&](VertexId v) {
    if (seen[v]) return;
    seen[v] = true;
    order.push_back(v);
  };
  for (const VertexId root : roots) {
    std::size_t next = order.size();
    reach(root);
    for (; next < order.size(); ++next) {
      for (const NetId e : level.nets_of(order[next])) {
        const auto pins = level.graph.pins_of(e);
        if (followed[e] || pins.size() > kLargestFollowedNet) continue;
        followed[e] = true;
        for (const VertexId u : pins) reach(u);
      }
    }
  }
  return order;
}

// Gives parts equal stretches of the order, measured by the sum of both dimensions.
IdVector<VertexId, PartId> fill_in_order(const HyperLevel& level, const HyperProblem& problem,
                                         std::span<const VertexId> order) {
  const auto size = [&](VertexId v) {
    const HyperWeight weight = level.weight(v);
    return problem.per_compute * static_cast<double>(weight.compute) +
           problem.per_data * static_cast<double>(weight.data);
  };
  double total = 0;
  for (const VertexId v : order) total += level.movable(v) ? size(v) : 0;
  IdVector<VertexId, PartId> parts = level.fixed;
  double filled = 0;
  for (const VertexId v : order) {
    if (!level.movable(v)) continue;
    const double middle = filled + size(v) / 2;
    filled += size(v);
    const double place = total > 0 ? middle / total * problem.num_parts : 0;
    parts[v] = PartId{std::min(problem.num_parts - 1, static_cast<std::int32_t>(place))};
  }
  return parts;
}

// Puts vertices, in neighbour order, in the part that has most of their nets already, among the
// parts with room.
class Growing {
 public:
  Growing(const HyperLevel& level, const HyperProblem& problem, FastRandom& random)
      : level_(level),
        problem_(problem),
        random_(random),
        counts_(level.graph, problem.num_parts),
        parts_(level.fixed),
        load_(problem.parts()),
        shared_(problem.parts(), 0) {}

  IdVector<VertexId, PartId> run() {
    for (const VertexId v : level_.vertices()) {
      if (!level_.movable(v)) put(v, parts_[v]);
    }
    for (const VertexId v : neighbour_order(level_, random_)) {
      if (!level_.movable(v)) continue;
      const PartId part = nearest_part(v);
      put(v, part.valid() ? part : emptiest_part(v));
    }
    return parts_;
  }

 private:
  void put(VertexId v, PartId part) {
    parts_[v] = part;
    HyperWeight& load = load_[part];
    load = load + level_.weight(v);
    for (const NetId e : level_.nets_of(v)) counts_.add(e, part);
  }

  PartId nearest_part(VertexId v) {
    touched_.clear();
    for (const NetId e : level_.nets_of(v)) {
      counts_.for_each_part(e, [&](PartId p) {
        std::int64_t& shared = shared_[p];
        if (shared == 0) touched_.push_back(p);
        shared += level_.net_weight(e);
      });
    }
    PartId best;
    std::int64_t most = 0;
    for (const PartId p : touched_) {
      const std::int64_t shared = std::exchange(shared_[p], 0);
      const HyperWeight with = load_[p] + level_.weight(v);
      if (shared <= most || !fits(with, problem_.room_of(p))) continue;
      best = p;
      most = shared;
    }
    return best;
  }

  PartId emptiest_part(VertexId v) {
    const bool all = problem_.num_parts <= kSampledParts;
    PartId best;
    std::pair<double, double> best_rank;
    for (std::int32_t i = 0; i < std::min(problem_.num_parts, kSampledParts); ++i) {
      const PartId p{all ? i : random_.below(problem_.num_parts)};
      const HyperWeight with = load_[p] + level_.weight(v);
      const std::pair rank = {problem_.overload(p, with), problem_.share(with)};
      if (best.valid() && rank >= best_rank) continue;
      best = p;
      best_rank = rank;
    }
    return best;
  }

  const HyperLevel& level_;
  const HyperProblem& problem_;
  FastRandom& random_;
  NetCounts counts_;
  IdVector<VertexId, PartId> parts_;
  IdVector<PartId, HyperWeight> load_;
  IdVector<PartId, std::int64_t> shared_;
  std::vector<PartId> touched_;
};

}  // namespace

IdVector<VertexId, PartId> make_start(const HyperLevel& level, const HyperProblem& problem,
                                      StartKind kind, std::uint64_t seed) {
  FastRandom random(seed + static_cast<std::uint64_t>(kind));
  switch (kind) {
    case StartKind::kGrowing:
      return Growing(level, problem, random).run();
    case StartKind::kPacking:
      return pack(level, problem);
    case StartKind::kNeighbourOrder:
      return fill_in_order(level, problem, neighbour_order(level, random));
    case StartKind::kVertexOrder: {
      std::vector<VertexId> order = in_order(level);
      std::rotate(order.begin(),
                  order.begin() + (order.empty() ? 0 : random.below(level.num_vertices())),
                  order.end());
      return fill_in_order(level, problem, order);
    }
  }
  return level.fixed;  // no other kind
}

}  // namespace contextile
