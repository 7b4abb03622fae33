#include "partition/hypergraph/graph_support.h"

#include <algorithm>
#include <cstddef>
#include <span>

namespace contextile {
namespace {

std::int64_t uniform(std::mt19937_64& random, std::int64_t least, std::int64_t most) {
  const auto count = static_cast<std::uint64_t>(most - least + 1);
  return least + static_cast<std::int64_t>(random() % count);
}

}  // namespace

std::vector<VertexId> pins(std::initializer_list<std::int32_t> vertices) {
  return {vertices.begin(), vertices.end()};
}

IdVector<VertexId, PartId> parts(std::initializer_list<std::int32_t> of_vertices) {
  return IdVector<VertexId, PartId>(std::vector<PartId>(of_vertices.begin(), of_vertices.end()));
}

Hypergraph random_hypergraph(const RandomHypergraph& shape, std::mt19937_64& random) {
  Hypergraph hypergraph;
  for (std::int32_t v = 0; v < shape.vertices; ++v) {
    HyperWeight weight = {uniform(random, 0, shape.heaviest_vertex),
                          uniform(random, 0, shape.heaviest_vertex)};
    const std::int64_t kind = uniform(random, 0, 4);
    if (kind < 2) weight.data = 0;
    if (kind == 2) weight.compute = 0;
    hypergraph.vertex_weights.push_back(weight);
  }
  std::vector<VertexId> order;
  for (const VertexId v : hypergraph.vertices()) order.push_back(v);
  for (std::int32_t e = 0; e < shape.nets; ++e) {
    const std::int64_t size = uniform(random, 1, std::min(shape.largest_net, shape.vertices));
    for (std::int64_t i = 0; i < size; ++i) {
      std::swap(order[static_cast<std::size_t>(i)],
                order[static_cast<std::size_t>(uniform(random, i, shape.vertices - 1))]);
    }
    hypergraph.add_net(std::span(order).first(static_cast<std::size_t>(size)),
                       uniform(random, 0, shape.heaviest_net));
  }
  return hypergraph;
}

Hypergraph causal_attention(std::int32_t blocks, double tail) {
  constexpr std::int64_t kBlock = 100'000;
  const auto tokens = [&](std::int32_t block) {
    return block + 1 < blocks ? kBlock : static_cast<std::int64_t>(tail * kBlock);
  };
  Hypergraph hypergraph;
  const IdRange<VertexId> all(blocks);
  for (const VertexId b : all) hypergraph.add_vertex({0, tokens(b.value)});
  IdVector<VertexId, std::vector<VertexId>> rows(all);
  IdVector<VertexId, std::vector<VertexId>> columns(all);
  for (const VertexId q : all) {
    rows[q].push_back(q);
    columns[q].push_back(q);
    for (const VertexId k : IdRange<VertexId>(q.value + 1)) {
      const std::int64_t pairs = tokens(q.value) * tokens(k.value) / (q == k ? 2 : 1);
      const VertexId tile = hypergraph.add_vertex({pairs, 0});
      rows[q].push_back(tile);
      columns[k].push_back(tile);
    }
  }
  for (const VertexId b : all) {
    hypergraph.add_net(rows[b], 4 * tokens(b.value));
    hypergraph.add_net(columns[b], tokens(b.value));
  }
  return hypergraph;
}

IdVector<VertexId, PartId> random_parts(const Hypergraph& hypergraph, const HypergraphSpec& spec,
                                        std::mt19937_64& random) {
  IdVector<VertexId, PartId> parts(hypergraph.vertices());
  for (const VertexId v : parts.ids()) {
    const bool free = spec.fixed.empty() || !spec.fixed[v].valid();
    parts[v] = free ? PartId{static_cast<std::int32_t>(uniform(random, 0, spec.num_parts - 1))}
                    : spec.fixed[v];
  }
  return parts;
}

std::optional<double> best_objective(const Hypergraph& hypergraph, const HypergraphSpec& spec) {
  HypergraphPartition partition{IdVector<VertexId, PartId>(hypergraph.vertices(), PartId{0})};
  std::optional<double> best;
  while (true) {
    bool respects_fixed = true;
    for (const VertexId v : spec.fixed.ids()) {
      respects_fixed =
          respects_fixed && (!spec.fixed[v].valid() || spec.fixed[v] == partition.part[v]);
    }
    if (respects_fixed) {
      const HypergraphQuality quality = evaluate_hypergraph(hypergraph, spec, partition);
      if (quality.feasible && (!best || quality.objective < *best)) best = quality.objective;
    }
    auto digit = partition.part.begin();  // the next number in base num_parts
    while (digit != partition.part.end() && ++digit->value == spec.num_parts) *digit++ = PartId{0};
    if (digit == partition.part.end()) return best;
  }
}

}  // namespace contextile
