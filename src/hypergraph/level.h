// One level of the multilevel hierarchy: a hypergraph that can be walked from nets and from
// vertices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/hypergraph.h"

namespace contextile {

// Nets have at least two pins, no two nets have the same pins.
struct HyperLevel {
  Hypergraph graph;
  std::vector<std::int32_t> fixed;           // part of every vertex, -1: free
  std::vector<std::int32_t> start;           // a partition no cluster crosses; empty: none
  std::vector<std::int64_t> vertex_offsets;  // of `nets`, one more than vertices
  std::vector<std::int32_t> nets;            // of every vertex

  [[nodiscard]] std::int32_t num_vertices() const { return graph.num_vertices(); }
  [[nodiscard]] std::span<const std::int32_t> nets_of(std::int32_t vertex) const {
    const auto begin = static_cast<std::size_t>(vertex_offsets[static_cast<std::size_t>(vertex)]);
    const auto end = static_cast<std::size_t>(vertex_offsets[static_cast<std::size_t>(vertex) + 1]);
    return std::span(nets).subspan(begin, end - begin);
  }
  [[nodiscard]] std::int64_t net_weight(std::int32_t net) const {
    return graph.net_weights[static_cast<std::size_t>(net)];
  }
  [[nodiscard]] HyperWeight weight(std::int32_t vertex) const {
    return graph.vertex_weights[static_cast<std::size_t>(vertex)];
  }
  [[nodiscard]] bool movable(std::int32_t vertex) const {
    return fixed[static_cast<std::size_t>(vertex)] < 0;
  }
};

// The level whose vertices are the clusters 0 … num_clusters-1 of `fine`: pins are merged, nets
// left with one pin dropped, nets with the same pins added up. With every vertex its own cluster:
// `fine` without useless nets. Vertices of a cluster agree in `fixed` and `start`.
[[nodiscard]] HyperLevel contract(const HyperLevel& fine, std::span<const std::int32_t> cluster,
                                  std::int32_t num_clusters);

// The finest level. fixed and start are taken from the spec.
[[nodiscard]] HyperLevel finest_level(const Hypergraph& hypergraph, const HypergraphSpec& spec);

}  // namespace contextile
