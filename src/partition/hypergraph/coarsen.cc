#include "partition/hypergraph/coarsen.h"

#include <algorithm>
#include <utility>

#include "base/fast_random.h"
#include "base/interrupt.h"

namespace contextile {
namespace {

// Clusters stay below this many times the mean vertex of the coarsest level.
constexpr double kLargestCluster = 1.6;
// A step must remove at least one of so many vertices, or it is the last.
constexpr std::int32_t kLeastReduction = 25;
// Larger nets say little about which vertices belong together, and rating them would be quadratic.
constexpr std::size_t kLargestRatedNet = 400;

HyperWeight cluster_limit(const HyperLevel& level, std::int64_t target) {
  HyperWeight total;
  for (const HyperWeight& weight : level.graph.vertex_weights) total = total + weight;
  const double share = kLargestCluster / static_cast<double>(target);
  return {static_cast<std::int64_t>(share * static_cast<double>(total.compute)),
          static_cast<std::int64_t>(share * static_cast<double>(total.data))};
}

class Clustering {
 public:
  Clustering(const HyperLevel& level, const HyperProblem& problem, HyperWeight limit,
             std::uint64_t seed)
      : level_(level), problem_(problem), limit_(limit), random_(seed) {
    leader_.resize(level.vertices());
    for (const VertexId v : level.vertices()) leader_[v] = v;
    weight_ = level.graph.vertex_weights;
    alone_.assign(level.vertices(), true);
    rating_.assign(level.vertices(), 0);
    mean_size_ = 2.0 * problem.num_parts / level.num_vertices();
  }

  // Visits all vertices once and joins each that is alone to its best cluster, until `target`
  // clusters remain. Returns the cluster of every vertex, numbered in order of first appearance,
  // and the number of clusters.
  std::pair<IdVector<VertexId, VertexId>, std::int32_t> run(std::int64_t target) {
    std::vector<VertexId> order(leader_.begin(), leader_.end());
    random_.shuffle(order);
    std::int64_t left = level_.num_vertices();
    for (const VertexId v : order) {
      check_interrupt();
      if (left <= target) break;
      if (!alone_[v]) continue;
      const VertexId c = best_cluster(v);
      if (!c.valid()) continue;
      join(v, c);
      --left;
    }
    return numbered();
  }

 private:
  [[nodiscard]] bool may_join(VertexId v, VertexId c) const {
    if (level_.fixed[v] != level_.fixed[c]) return false;
    if (!level_.start.empty() && level_.start[v] != level_.start[c]) return false;
    // Fixed vertices never move, so their cluster may weigh anything.
    return !level_.movable(v) || fits(weight_[v] + weight_[c], limit_);
  }

  // Returns the size of a cluster in fair shares of a part. The mean term keeps vertices without
  // weight from attracting all others.
  [[nodiscard]] double size(VertexId c) const {
    const HyperWeight weight = weight_[c];
    return mean_size_ + problem_.per_compute * static_cast<double>(weight.compute) +
           problem_.per_data * static_cast<double>(weight.data);
  }

  [[nodiscard]] VertexId best_cluster(VertexId v) {
    candidates_.clear();
    for (const NetId e : level_.nets_of(v)) {
      const auto pins = level_.graph.pins_of(e);
      if (pins.size() > kLargestRatedNet) continue;
      const double rating =
          static_cast<double>(level_.net_weight(e)) / static_cast<double>(pins.size() - 1);
      for (const VertexId u : pins) {
        const VertexId c = leader_[u];
        if (c == v) continue;
        double& sum = rating_[c];
        if (sum == 0) candidates_.push_back(c);
        sum += rating;
      }
    }
    VertexId best;
    double best_rating = 0;
    for (const VertexId c : candidates_) {
      // Dividing by its size lets a cluster grow round instead of long.
      const double rating = std::exchange(rating_[c], 0) / size(c);
      if (rating < best_rating || !may_join(v, c)) continue;
      // Ties are broken at random, so that regular hypergraphs do not coarsen along their
      // numbering.
      if (rating > best_rating || random_.below(2) == 0) best = c;
      best_rating = rating;
    }
    return best;
  }

  void join(VertexId v, VertexId c) {
    leader_[v] = c;
    weight_[c] = weight_[c] + weight_[v];
    alone_[v] = false;
    alone_[c] = false;
  }

  [[nodiscard]] std::pair<IdVector<VertexId, VertexId>, std::int32_t> numbered() const {
    IdVector<VertexId, VertexId> number(leader_.ids());
    IdVector<VertexId, VertexId> cluster(leader_.ids());
    std::int32_t count = 0;
    for (const VertexId v : leader_.ids()) {
      VertexId& mine = number[leader_[v]];
      if (!mine.valid()) mine = VertexId{count++};
      cluster[v] = mine;
    }
    return {std::move(cluster), count};
  }

  const HyperLevel& level_;
  const HyperProblem& problem_;
  HyperWeight limit_;
  double mean_size_;
  FastRandom random_;
  // A vertex that is alone leads itself. One that joined never becomes a leader, so there are no
  // chains.
  IdVector<VertexId, VertexId> leader_;
  IdVector<VertexId, HyperWeight> weight_;  // of the cluster, at its leader
  IdVector<VertexId, bool> alone_;
  IdVector<VertexId, double> rating_;  // scratch, by leader
  std::vector<VertexId> candidates_;   // leaders with a rating
};

}  // namespace

std::vector<HyperStep> coarsen(const HyperLevel& finest, const HyperProblem& problem,
                               std::int64_t target, std::uint64_t seed) {
  const HyperWeight limit = cluster_limit(finest, target);
  std::vector<HyperStep> steps;
  const HyperLevel* level = &finest;
  while (level->num_vertices() > target) {
    // One step shrinks a level at most to a third: clusters that grow in several steps see their
    // own nets again.
    const std::int64_t goal = std::max<std::int64_t>(target, level->num_vertices() / 3);
    Clustering clustering(*level, problem, limit, seed + steps.size());
    auto [cluster, count] = clustering.run(goal);
    if (count > level->num_vertices() - level->num_vertices() / kLeastReduction - 1) break;
    HyperLevel coarse = contract(*level, cluster, count);
    steps.push_back({std::move(coarse), std::move(cluster)});
    level = &steps.back().coarse;
  }
  return steps;
}

IdVector<VertexId, PartId> projected(const IdVector<VertexId, PartId>& parts,
                                     const IdVector<VertexId, VertexId>& cluster) {
  IdVector<VertexId, PartId> fine(cluster.ids());
  for (const VertexId v : fine.ids()) fine[v] = parts[cluster[v]];
  return fine;
}

}  // namespace contextile
