#include "partition/hypergraph/balance.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "partition/hypergraph/graph_support.h"

namespace contextile {
namespace {

HyperProblem balance_problem(const Hypergraph& hypergraph, const HypergraphSpec& spec) {
  HyperWeight total;
  for (const HyperWeight& weight : hypergraph.vertex_weights) total = total + weight;
  return {
      .num_parts = spec.num_parts,
      .capacity = part_capacities(hypergraph, spec),
      .traffic_weight = spec.traffic_weight,
      .per_compute = spec.num_parts / static_cast<double>(std::max<std::int64_t>(1, total.compute)),
      .per_data = spec.num_parts / static_cast<double>(std::max<std::int64_t>(1, total.data))};
}

TEST(Pack, FindsAPackingWheneverATinyInstanceHasOne) {
  int feasible = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Hypergraph hypergraph = random_hypergraph({.vertices = 9, .nets = 0}, random);
    const HypergraphSpec spec = {.num_parts = 3, .eps_compute = 0.01, .eps_data = 0.05};
    if (!best_objective(hypergraph, spec)) continue;
    ++feasible;
    const HypergraphPartition packed = {
        pack(finest_level(hypergraph, spec), balance_problem(hypergraph, spec))};
    EXPECT_TRUE(evaluate_hypergraph(hypergraph, spec, packed).feasible);
  }
  EXPECT_GT(feasible, 30);
}

TEST(Pack, LeavesFixedVerticesWhereTheyAre) {
  std::mt19937_64 random(1);
  const Hypergraph hypergraph = random_hypergraph({.vertices = 30}, random);
  HypergraphSpec spec = {.num_parts = 4,
                         .fixed = IdVector<VertexId, PartId>(hypergraph.vertices())};
  const std::vector<VertexId> fixed = pins({3, 4, 5});
  for (const VertexId v : fixed) spec.fixed[v] = PartId{2};
  const auto parts = pack(finest_level(hypergraph, spec), balance_problem(hypergraph, spec));
  for (const VertexId v : fixed) EXPECT_EQ(parts[v], PartId{2});
}

TEST(Repair, EndsFeasibleFromAnywhereWhereTailsFillGaps) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Hypergraph hypergraph = random_hypergraph({.vertices = 200, .nets = 300}, random);
    HypergraphSpec spec = {.num_parts = 4 + static_cast<std::int32_t>(seed % 5)};
    spec.fixed.resize(hypergraph.vertices());
    for (const VertexId v : IdRange<VertexId>(20)) {
      spec.fixed[v] = PartId{v.value % spec.num_parts};
    }
    const HyperLevel level = finest_level(hypergraph, spec);
    const HyperProblem problem = balance_problem(hypergraph, spec);
    // A partition with everything in one part is as unbalanced as can be.
    IdVector<VertexId, PartId> parts(hypergraph.vertices(), PartId{0});
    if (seed % 2 == 0) parts = random_parts(hypergraph, spec, random);
    for (const VertexId v : IdRange<VertexId>(20)) parts[v] = spec.fixed[v];
    HyperState state(level, problem, parts);
    FastRandom fast(seed);
    EXPECT_TRUE(repair(state, fast));
    EXPECT_TRUE(evaluate_hypergraph(hypergraph, spec, {state.parts()}).feasible);
    for (const VertexId v : IdRange<VertexId>(20)) EXPECT_EQ(state.part(v), spec.fixed[v]);
  }
}

TEST(Repair, SwapsWhereNoMoveFits) {
  // Two parts of capacity 10 hold 6 + 6 and 4 + 4, which only a swap repairs.
  Hypergraph hypergraph;
  hypergraph.vertex_weights = {{6, 0}, {6, 0}, {4, 0}, {4, 0}};
  const HypergraphSpec spec = {.num_parts = 2, .capacities = {{10, 0}, {10, 0}}};
  const HyperLevel level = finest_level(hypergraph, spec);
  const HyperProblem problem = balance_problem(hypergraph, spec);
  HyperState state(level, problem, parts({0, 0, 1, 1}));
  FastRandom random(1);
  EXPECT_TRUE(repair(state, random));
  EXPECT_EQ(state.part_weight(PartId{0}), (HyperWeight{10, 0}));
}

TEST(Repair, LowersAnOverloadItCannotRemove) {
  Hypergraph hypergraph;
  hypergraph.vertex_weights = {{9, 0}, {3, 0}, {3, 0}};
  const HypergraphSpec spec = {.num_parts = 2, .capacities = {{7, 0}, {7, 0}}};
  const HyperLevel level = finest_level(hypergraph, spec);
  const HyperProblem problem = balance_problem(hypergraph, spec);
  HyperState state(level, problem, parts({0, 0, 0}));
  FastRandom random(1);
  EXPECT_FALSE(repair(state, random));
  const std::int64_t first = state.part_weight(PartId{0}).compute;
  const std::int64_t second = state.part_weight(PartId{1}).compute;
  EXPECT_EQ(first + second, 15);
  EXPECT_EQ(std::max(first, second), 9);
}

}  // namespace
}  // namespace contextile
