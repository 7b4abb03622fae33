#include "hypergraph/level.h"

#include <algorithm>
#include <utility>

#include "hypergraph/problem.h"

namespace contextile {
namespace {

// Spreads small integers over 64 bits (the finaliser of MurmurHash3).
std::uint64_t spread(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

// Collects nets as sorted pin lists; a net seen before only adds its weight.
class NetSet {
 public:
  NetSet(Hypergraph& graph, std::int32_t num_nets_at_most) : graph_(graph) {
    std::size_t slots = 16;
    while (slots < 2 * static_cast<std::size_t>(num_nets_at_most)) slots *= 2;
    slots_.assign(slots, -1);
  }

  void add(std::span<const std::int32_t> pins, std::int64_t weight) {
    std::uint64_t hash = pins.size();
    for (const std::int32_t v : pins) hash = spread(hash ^ static_cast<std::uint32_t>(v)) + hash;
    std::size_t slot = hash & (slots_.size() - 1);
    for (; slots_[slot] >= 0; slot = (slot + 1) & (slots_.size() - 1)) {
      const auto known = graph_.pins_of(slots_[slot]);
      if (std::equal(pins.begin(), pins.end(), known.begin(), known.end())) {
        graph_.net_weights[static_cast<std::size_t>(slots_[slot])] += weight;
        return;
      }
    }
    slots_[slot] = graph_.num_nets();
    graph_.add_net(pins, weight);
  }

 private:
  Hypergraph& graph_;
  std::vector<std::int32_t> slots_;  // net or -1, open addressing
};

void index_vertices(HyperLevel& level) {
  const auto num_vertices = static_cast<std::size_t>(level.num_vertices());
  level.vertex_offsets.assign(num_vertices + 1, 0);
  for (const std::int32_t v : level.graph.pins)
    ++level.vertex_offsets[static_cast<std::size_t>(v) + 1];
  for (std::size_t v = 0; v < num_vertices; ++v) {
    level.vertex_offsets[v + 1] += level.vertex_offsets[v];
  }
  level.nets.resize(level.graph.pins.size());
  std::vector<std::int64_t> next(level.vertex_offsets.begin(), level.vertex_offsets.end() - 1);
  for (std::int32_t e = 0; e < level.graph.num_nets(); ++e) {
    for (const std::int32_t v : level.graph.pins_of(e)) {
      level.nets[static_cast<std::size_t>(next[static_cast<std::size_t>(v)]++)] = e;
    }
  }
}

// The nets of `fine` between clusters, added to `coarse`, whose vertices are there.
void contract_nets(const Hypergraph& fine, std::span<const std::int32_t> cluster,
                   Hypergraph& coarse) {
  NetSet nets(coarse, fine.num_nets());
  std::vector<std::int32_t> pins;
  for (std::int32_t e = 0; e < fine.num_nets(); ++e) {
    const std::int64_t weight = fine.net_weights[static_cast<std::size_t>(e)];
    if (weight == 0) continue;
    pins.clear();
    for (const std::int32_t v : fine.pins_of(e))
      pins.push_back(cluster[static_cast<std::size_t>(v)]);
    std::sort(pins.begin(), pins.end());
    pins.erase(std::unique(pins.begin(), pins.end()), pins.end());
    if (pins.size() >= 2) nets.add(pins, weight);
  }
}

}  // namespace

HyperLevel contract(const HyperLevel& fine, std::span<const std::int32_t> cluster,
                    std::int32_t num_clusters) {
  HyperLevel coarse;
  coarse.graph.vertex_weights.resize(static_cast<std::size_t>(num_clusters));
  coarse.fixed.assign(static_cast<std::size_t>(num_clusters), -1);
  if (!fine.start.empty()) coarse.start.assign(static_cast<std::size_t>(num_clusters), 0);
  for (std::size_t v = 0; v < cluster.size(); ++v) {
    const auto c = static_cast<std::size_t>(cluster[v]);
    HyperWeight& weight = coarse.graph.vertex_weights[c];
    weight = weight + fine.graph.vertex_weights[v];
    coarse.fixed[c] = fine.fixed[v];
    if (!fine.start.empty()) coarse.start[c] = fine.start[v];
  }
  contract_nets(fine.graph, cluster, coarse.graph);
  index_vertices(coarse);
  return coarse;
}

HyperLevel finest_level(const Hypergraph& hypergraph, const HypergraphSpec& spec) {
  const auto num_vertices = static_cast<std::size_t>(hypergraph.num_vertices());
  std::vector<std::int32_t> itself(num_vertices);
  for (std::size_t v = 0; v < num_vertices; ++v) itself[v] = static_cast<std::int32_t>(v);
  HyperLevel level;
  level.graph.vertex_weights = hypergraph.vertex_weights;
  level.fixed = spec.fixed.empty() ? std::vector<std::int32_t>(num_vertices, -1) : spec.fixed;
  level.start = spec.start;
  contract_nets(hypergraph, itself, level.graph);
  index_vertices(level);
  return level;
}

}  // namespace contextile
