// Hypergraphs for tests, and the best partition of a tiny one by exhaustive search.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <random>
#include <vector>

#include "contextile/extend/hypergraph.h"

namespace contextile {

[[nodiscard]] std::vector<VertexId> pins(std::initializer_list<std::int32_t> vertices);
// Returns parts by vertex 0, 1, …; -1: none.
[[nodiscard]] IdVector<VertexId, PartId> parts(std::initializer_list<std::int32_t> of_vertices);

struct RandomHypergraph {
  std::int32_t vertices = 20;
  std::int32_t nets = 30;
  std::int32_t largest_net = 5;
  std::int64_t heaviest_net = 9;
  std::int64_t heaviest_vertex = 9;  // in both dimensions; most weigh in one of them only
};

[[nodiscard]] Hypergraph random_hypergraph(const RandomHypergraph& shape, std::mt19937_64& random);

// Returns causal attention of one sequence: `blocks` vertices with data, a vertex with compute for
// each tile, a net for each row and column. The last block is a tail of `tail` times the size of
// the others.
[[nodiscard]] Hypergraph causal_attention(std::int32_t blocks, double tail = 1);

// Returns uniform parts. Fixed vertices are in their parts.
[[nodiscard]] IdVector<VertexId, PartId> random_parts(const Hypergraph& hypergraph,
                                                      const HypergraphSpec& spec,
                                                      std::mt19937_64& random);

// Returns the lowest objective of all feasible partitions, or nothing if there is none. Takes
// num_parts^vertices steps.
[[nodiscard]] std::optional<double> best_objective(const Hypergraph& hypergraph,
                                                   const HypergraphSpec& spec);

}  // namespace contextile
