// One level of the multilevel hierarchy: a hypergraph that can be walked from nets and from
// vertices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/hypergraph.h"

namespace contextile {

// Nets have at least two pins, no two nets have the same pins.
struct HyperLevel {
  Hypergraph graph;
  IdVector<VertexId, PartId> fixed;          // part of every vertex, invalid: free
  IdVector<VertexId, PartId> start;          // a partition no cluster crosses; empty: none
  std::vector<std::int64_t> vertex_offsets;  // of `nets`, one more than vertices
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

// The level whose vertices are the clusters 0 … num_clusters-1 of `fine`: pins are merged, nets
// left with one pin dropped, nets with the same pins added up. With every vertex its own cluster:
// `fine` without useless nets. Vertices of a cluster agree in `fixed` and `start`.
[[nodiscard]] HyperLevel contract(const HyperLevel& fine,
                                  const IdVector<VertexId, VertexId>& cluster,
                                  std::int32_t num_clusters);

// The finest level. fixed and start are taken from the spec.
[[nodiscard]] HyperLevel finest_level(const Hypergraph& hypergraph, const HypergraphSpec& spec);

}  // namespace contextile
