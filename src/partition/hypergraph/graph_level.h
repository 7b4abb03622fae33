// One level of the multilevel hierarchy: a hypergraph that is indexed by nets and by vertices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/hypergraph.h"

namespace contextile {

// Nets have at least two pins, and no two nets have the same pins.
struct HyperLevel {
  Hypergraph graph;
  IdVector<VertexId, PartId> fixed;          // part of every vertex, invalid: free
  IdVector<VertexId, PartId> start;          // a partition that no cluster crosses; empty: none
  std::vector<std::int64_t> vertex_offsets;  // of `nets`; one more than there are vertices
  std::vector<NetId> nets;                   // of every vertex

  [[nodiscard]] std::int32_t num_vertices() const { return graph.num_vertices(); }
  [[nodiscard]] IdRange<VertexId> vertices() const { return graph.vertices(); }
  [[nodiscard]] std::span<const NetId> nets_of(VertexId vertex) const {
    return {nets.data() + vertex_offsets[vertex.index()],
            nets.data() + vertex_offsets[vertex.index() + 1]};
  }
  [[nodiscard]] std::int64_t net_weight(NetId net) const { return graph.net_weights[net]; }
  [[nodiscard]] HyperWeight weight(VertexId vertex) const { return graph.vertex_weights[vertex]; }
  [[nodiscard]] bool movable(VertexId vertex) const { return !fixed[vertex].valid(); }
};

// Returns the level whose vertices are the clusters 0 … num_clusters-1 of `fine`. Pins are merged,
// nets with one remaining pin are dropped, and nets with the same pins are added up. If every
// vertex is its own cluster, that is `fine` without useless nets. Vertices of a cluster must agree
// in `fixed` and `start`.
[[nodiscard]] HyperLevel contract(const HyperLevel& fine,
                                  const IdVector<VertexId, VertexId>& cluster,
                                  std::int32_t num_clusters);

// Returns the finest level, with `fixed` and `start` of the spec.
[[nodiscard]] HyperLevel finest_level(const Hypergraph& hypergraph, const HypergraphSpec& spec);

}  // namespace contextile
