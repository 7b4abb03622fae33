#include "hypergraph/support.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>

namespace contextile {
namespace {

std::int64_t uniform(std::mt19937_64& random, std::int64_t least, std::int64_t most) {
  const auto count = static_cast<std::uint64_t>(most - least + 1);
  return least + static_cast<std::int64_t>(random() % count);
}

}  // namespace

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
  std::vector<std::int32_t> order(static_cast<std::size_t>(shape.vertices));
  std::iota(order.begin(), order.end(), 0);
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
  for (std::int32_t b = 0; b < blocks; ++b) hypergraph.vertex_weights.push_back({0, tokens(b)});
  std::vector<std::vector<std::int32_t>> rows(static_cast<std::size_t>(blocks));
  std::vector<std::vector<std::int32_t>> columns(static_cast<std::size_t>(blocks));
  for (std::int32_t q = 0; q < blocks; ++q) {
    rows[static_cast<std::size_t>(q)].push_back(q);
    columns[static_cast<std::size_t>(q)].push_back(q);
    for (std::int32_t k = 0; k <= q; ++k) {
      const std::int32_t tile = hypergraph.num_vertices();
      hypergraph.vertex_weights.push_back({tokens(q) * tokens(k) / (q == k ? 2 : 1), 0});
      rows[static_cast<std::size_t>(q)].push_back(tile);
      columns[static_cast<std::size_t>(k)].push_back(tile);
    }
  }
  for (std::int32_t b = 0; b < blocks; ++b) {
    hypergraph.add_net(rows[static_cast<std::size_t>(b)], 4 * tokens(b));
    hypergraph.add_net(columns[static_cast<std::size_t>(b)], tokens(b));
  }
  return hypergraph;
}

std::vector<std::int32_t> random_parts(const Hypergraph& hypergraph, const HypergraphSpec& spec,
                                       std::mt19937_64& random) {
  std::vector<std::int32_t> parts(static_cast<std::size_t>(hypergraph.num_vertices()));
  for (std::size_t v = 0; v < parts.size(); ++v) {
    const bool free = spec.fixed.empty() || spec.fixed[v] < 0;
    parts[v] =
        free ? static_cast<std::int32_t>(uniform(random, 0, spec.num_parts - 1)) : spec.fixed[v];
  }
  return parts;
}

std::optional<double> best_objective(const Hypergraph& hypergraph, const HypergraphSpec& spec) {
  HypergraphPartition partition{
      std::vector<std::int32_t>(static_cast<std::size_t>(hypergraph.num_vertices()), 0)};
  std::optional<double> best;
  while (true) {
    bool respects_fixed = true;
    for (std::size_t v = 0; v < spec.fixed.size(); ++v) {
      respects_fixed = respects_fixed && (spec.fixed[v] < 0 || spec.fixed[v] == partition.part[v]);
    }
    if (respects_fixed) {
      const HypergraphQuality quality = evaluate_hypergraph(hypergraph, spec, partition);
      if (quality.feasible && (!best || quality.objective < *best)) best = quality.objective;
    }
    std::size_t v = 0;  // the next number in base num_parts
    while (v < partition.part.size() && ++partition.part[v] == spec.num_parts) {
      partition.part[v++] = 0;
    }
    if (v == partition.part.size()) return best;
  }
}

}  // namespace contextile
