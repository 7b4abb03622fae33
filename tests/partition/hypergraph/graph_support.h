// Hypergraphs to test on, and the best partition of a tiny one by looking at all.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <random>
#include <vector>

#include "contextile/extend/hypergraph.h"

namespace contextile {

[[nodiscard]] std::vector<VertexId> pins(std::initializer_list<std::int32_t> vertices);
// By vertex 0, 1, …; -1: none.
[[nodiscard]] IdVector<VertexId, PartId> parts(std::initializer_list<std::int32_t> of_vertices);

struct RandomHypergraph {
  std::int32_t vertices = 20;
  std::int32_t nets = 30;
  std::int32_t largest_net = 5;
  std::int64_t heaviest_net = 9;
  std::int64_t heaviest_vertex = 9;  // in both dimensions; most weigh in one of them only
};

[[nodiscard]] Hypergraph random_hypergraph(const RandomHypergraph& shape, std::mt19937_64& random);

// Causal attention of one sequence: `blocks` vertices with data, a vertex with compute for each
// tile, a net for each row and column. The last block is a tail of `tail` times the others' size.
[[nodiscard]] Hypergraph causal_attention(std::int32_t blocks, double tail = 1);

// Uniform parts; fixed vertices where they belong.
[[nodiscard]] IdVector<VertexId, PartId> random_parts(const Hypergraph& hypergraph,
                                                      const HypergraphSpec& spec,
                                                      std::mt19937_64& random);

// The lowest objective of all feasible partitions; nothing when there is none. num_parts^vertices.
[[nodiscard]] std::optional<double> best_objective(const Hypergraph& hypergraph,
                                                   const HypergraphSpec& spec);

}  // namespace contextile
