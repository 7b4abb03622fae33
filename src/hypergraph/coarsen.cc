#include "hypergraph/coarsen.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/fast_random.h"

namespace contextile {
namespace {

// Clusters stay below this many times the mean vertex of the coarsest level.
constexpr double kLargestCluster = 1.6;
// A step must remove at least one vertex in this many, or it is the last.
constexpr std::int32_t kLeastReduction = 25;
// Larger nets say little about who belongs together, and rating them would be quadratic.
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
    const auto num_vertices = static_cast<std::size_t>(level.num_vertices());
    leader_.resize(num_vertices);
    std::iota(leader_.begin(), leader_.end(), 0);
    weight_ = level.graph.vertex_weights;
    alone_.assign(num_vertices, true);
    rating_.assign(num_vertices, 0);
    mean_size_ = 2.0 * problem.num_parts / static_cast<double>(num_vertices);
  }

  // Visits all vertices once and joins each that is alone to its best cluster, until `target` are
  // left. Returns the cluster of every vertex, numbered in order of first appearance.
  std::pair<std::vector<std::int32_t>, std::int32_t> run(std::int64_t target) {
    std::vector<std::int32_t> order = leader_;
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1],
                order[static_cast<std::size_t>(random_.below(static_cast<std::int32_t>(i)))]);
    }
    std::int64_t left = level_.num_vertices();
    for (const std::int32_t v : order) {
      if (left <= target) break;
      if (!alone_[static_cast<std::size_t>(v)]) continue;
      const std::int32_t c = best_cluster(v);
      if (c < 0) continue;
      join(v, c);
      --left;
    }
    return numbered();
  }

 private:
  [[nodiscard]] bool may_join(std::int32_t v, std::int32_t c) const {
    const auto i = static_cast<std::size_t>(v);
    const auto j = static_cast<std::size_t>(c);
    if (level_.fixed[i] != level_.fixed[j]) return false;
    if (!level_.start.empty() && level_.start[i] != level_.start[j]) return false;
    // Fixed vertices never move, so their cluster may weigh anything.
    return level_.fixed[i] >= 0 || fits(weight_[i] + weight_[j], limit_);
  }

  // A cluster in fair shares of a part. The mean keeps vertices without weight from attracting all
  // others.
  [[nodiscard]] double size(std::int32_t c) const {
    const HyperWeight weight = weight_[static_cast<std::size_t>(c)];
    return mean_size_ + problem_.per_compute * static_cast<double>(weight.compute) +
           problem_.per_data * static_cast<double>(weight.data);
  }

  [[nodiscard]] std::int32_t best_cluster(std::int32_t v) {
    candidates_.clear();
    for (const std::int32_t e : level_.nets_of(v)) {
      const auto pins = level_.graph.pins_of(e);
      if (pins.size() > kLargestRatedNet) continue;
      const double rating =
          static_cast<double>(level_.net_weight(e)) / static_cast<double>(pins.size() - 1);
      for (const std::int32_t u : pins) {
        const std::int32_t c = leader_[static_cast<std::size_t>(u)];
        if (c == v) continue;
        double& sum = rating_[static_cast<std::size_t>(c)];
        if (sum == 0) candidates_.push_back(c);
        sum += rating;
      }
    }
    std::int32_t best = -1;
    double best_rating = 0;
    for (const std::int32_t c : candidates_) {
      // Divided by its size, a cluster grows round instead of long.
      const double rating = std::exchange(rating_[static_cast<std::size_t>(c)], 0) / size(c);
      if (rating < best_rating || !may_join(v, c)) continue;
      // Ties go to a random one, so that regular hypergraphs do not coarsen along their numbering.
      if (rating > best_rating || random_.below(2) == 0) best = c;
      best_rating = rating;
    }
    return best;
  }

  void join(std::int32_t v, std::int32_t c) {
    const auto i = static_cast<std::size_t>(v);
    const auto j = static_cast<std::size_t>(c);
    leader_[i] = c;
    weight_[j] = weight_[j] + weight_[i];
    alone_[i] = false;
    alone_[j] = false;
  }

  [[nodiscard]] std::pair<std::vector<std::int32_t>, std::int32_t> numbered() const {
    std::vector<std::int32_t> number(leader_.size(), -1);
    std::vector<std::int32_t> cluster(leader_.size());
    std::int32_t count = 0;
    for (std::size_t v = 0; v < leader_.size(); ++v) {
      std::int32_t& mine = number[static_cast<std::size_t>(leader_[v])];
      if (mine < 0) mine = count++;
      cluster[v] = mine;
    }
    return {std::move(cluster), count};
  }

  const HyperLevel& level_;
  const HyperProblem& problem_;
  HyperWeight limit_;
  double mean_size_;
  FastRandom random_;
  // A vertex that is alone leads itself; one that joined never becomes a leader: no chains.
  std::vector<std::int32_t> leader_;
  std::vector<HyperWeight> weight_;  // of the cluster, at its leader
  std::vector<bool> alone_;
  std::vector<double> rating_;            // scratch, by leader
  std::vector<std::int32_t> candidates_;  // leaders with a rating
};

}  // namespace

std::vector<HyperStep> coarsen(const HyperLevel& finest, const HyperProblem& problem,
                               std::int64_t target, std::uint64_t seed) {
  const HyperWeight limit = cluster_limit(finest, target);
  std::vector<HyperStep> steps;
  const HyperLevel* level = &finest;
  while (level->num_vertices() > target) {
    // At most to a third in one step: clusters that grow in several steps see their own nets again.
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

std::vector<std::int32_t> projected(const std::vector<std::int32_t>& parts,
                                    const std::vector<std::int32_t>& cluster) {
  std::vector<std::int32_t> fine(cluster.size());
  for (std::size_t v = 0; v < fine.size(); ++v) {
    fine[v] = parts[static_cast<std::size_t>(cluster[v])];
  }
  return fine;
}

}  // namespace contextile
