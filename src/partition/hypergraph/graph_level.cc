#include "partition/hypergraph/graph_level.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/interrupt.h"
#include "partition/hypergraph/graph_problem.h"

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

// Collects nets as sorted pin lists. A net with the pins of a known one only adds its weight to
// that one.
class NetSet {
 public:
  NetSet(Hypergraph& graph, std::int32_t num_nets_at_most) : graph_(graph) {
    std::size_t slots = 16;
    while (slots < 2 * static_cast<std::size_t>(num_nets_at_most)) slots *= 2;
    slots_.assign(slots, NetId{});
  }

  void add(std::span<const VertexId> pins, std::int64_t weight) {
    std::uint64_t hash = pins.size();
    for (const VertexId v : pins) {
      hash = spread(hash ^ static_cast<std::uint32_t>(v.value)) + hash;
    }
    std::size_t slot = hash & (slots_.size() - 1);
    for (; slots_[slot].valid(); slot = (slot + 1) & (slots_.size() - 1)) {
      const auto known = graph_.pins_of(slots_[slot]);
      if (std::equal(pins.begin(), pins.end(), known.begin(), known.end())) {
        graph_.net_weights[slots_[slot]] += weight;
        return;
      }
    }
    slots_[slot] = graph_.add_net(pins, weight);
  }

 private:
  Hypergraph& graph_;
  std::vector<NetId> slots_;  // invalid: empty; open addressing
};

void index_vertices(HyperLevel& level) {
  std::vector<std::int64_t>& offsets = level.vertex_offsets;
  offsets.assign(level.vertices().size() + 1, 0);
  for (const VertexId v : level.graph.pins) ++offsets[v.index() + 1];
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  level.nets.resize(level.graph.pins.size());
  IdVector<VertexId, std::int64_t> next(std::vector(offsets.begin(), offsets.end() - 1));
  for (const NetId e : level.graph.nets()) {
    for (const VertexId v : level.graph.pins_of(e)) {
      level.nets[static_cast<std::size_t>(next[v]++)] = e;
    }
  }
}

// Adds the nets of `fine` between clusters to `coarse`, which has its vertices already.
void contract_nets(const Hypergraph& fine, const IdVector<VertexId, VertexId>& cluster,
                   Hypergraph& coarse) {
  NetSet nets(coarse, fine.num_nets());
  std::vector<VertexId> pins;
  for (const NetId e : fine.nets()) {
    check_interrupt();
    const std::int64_t weight = fine.net_weights[e];
    if (weight == 0) continue;
    pins.clear();
    for (const VertexId v : fine.pins_of(e)) pins.push_back(cluster[v]);
    std::sort(pins.begin(), pins.end());
    pins.erase(std::unique(pins.begin(), pins.end()), pins.end());
    if (pins.size() >= 2) nets.add(pins, weight);
  }
}

}  // namespace

HyperLevel contract(const HyperLevel& fine, const IdVector<VertexId, VertexId>& cluster,
                    std::int32_t num_clusters) {
  HyperLevel coarse;
  const IdRange<VertexId> clusters(num_clusters);
  coarse.graph.vertex_weights.resize(clusters);
  coarse.fixed.resize(clusters);
  if (!fine.start.empty()) coarse.start.resize(clusters);
  for (const VertexId v : cluster.ids()) {
    const VertexId c = cluster[v];
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
  IdVector<VertexId, VertexId> itself(hypergraph.vertices());
  for (const VertexId v : hypergraph.vertices()) itself[v] = v;
  HyperLevel level;
  level.graph.vertex_weights = hypergraph.vertex_weights;
  level.fixed = spec.fixed;
  level.fixed.resize(hypergraph.vertices());
  level.start = spec.start;
  contract_nets(hypergraph, itself, level.graph);
  index_vertices(level);
  return level;
}

}  // namespace contextile
