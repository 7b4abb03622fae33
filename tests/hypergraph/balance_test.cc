#include "hypergraph/balance.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "hypergraph/support.h"

namespace contextile {
namespace {

HyperProblem problem_of(const Hypergraph& hypergraph, const HypergraphSpec& spec) {
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
        pack(finest_level(hypergraph, spec), problem_of(hypergraph, spec))};
    EXPECT_TRUE(evaluate_hypergraph(hypergraph, spec, packed).feasible);
  }
  EXPECT_GT(feasible, 30);
}

TEST(Pack, LeavesFixedVerticesWhereTheyAre) {
  std::mt19937_64 random(1);
  const Hypergraph hypergraph = random_hypergraph({.vertices = 30}, random);
  HypergraphSpec spec = {.num_parts = 4, .fixed = std::vector<std::int32_t>(30, -1)};
  spec.fixed[3] = spec.fixed[4] = spec.fixed[5] = 2;
  const auto parts = pack(finest_level(hypergraph, spec), problem_of(hypergraph, spec));
  EXPECT_EQ(parts[3], 2);
  EXPECT_EQ(parts[4], 2);
  EXPECT_EQ(parts[5], 2);
}

TEST(Repair, EndsFeasibleFromAnywhereWhereTailsFillGaps) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Hypergraph hypergraph = random_hypergraph({.vertices = 200, .nets = 300}, random);
    HypergraphSpec spec = {.num_parts = 4 + static_cast<std::int32_t>(seed % 5)};
    spec.fixed.assign(200, -1);
    for (std::size_t v = 0; v < 20; ++v)
      spec.fixed[v] = static_cast<std::int32_t>(v) % spec.num_parts;
    const HyperLevel level = finest_level(hypergraph, spec);
    const HyperProblem problem = problem_of(hypergraph, spec);
    // Everything in one part is as far from balance as can be.
    std::vector<std::int32_t> parts(200, 0);
    if (seed % 2 == 0) parts = random_parts(hypergraph, spec, random);
    for (std::size_t v = 0; v < 20; ++v) parts[v] = spec.fixed[v];
    HyperState state(level, problem, parts);
    FastRandom fast(seed);
    EXPECT_TRUE(repair(state, fast));
    EXPECT_TRUE(evaluate_hypergraph(hypergraph, spec, {state.parts()}).feasible);
    for (std::size_t v = 0; v < 20; ++v) EXPECT_EQ(state.parts()[v], spec.fixed[v]);
  }
}

TEST(Repair, SwapsWhereNoMoveFits) {
  // Two parts of capacity 10 hold 6 + 6 and 4 + 4: only a swap repairs that.
  Hypergraph hypergraph;
  hypergraph.vertex_weights = {{6, 0}, {6, 0}, {4, 0}, {4, 0}};
  const HypergraphSpec spec = {.num_parts = 2, .capacities = {{10, 0}, {10, 0}}};
  const HyperLevel level = finest_level(hypergraph, spec);
  const HyperProblem problem = problem_of(hypergraph, spec);
  HyperState state(level, problem, {0, 0, 1, 1});
  FastRandom random(1);
  EXPECT_TRUE(repair(state, random));
  EXPECT_EQ(state.part_weight(0), (HyperWeight{10, 0}));
}

TEST(Repair, LowersAnOverloadItCannotRemove) {
  Hypergraph hypergraph;
  hypergraph.vertex_weights = {{9, 0}, {3, 0}, {3, 0}};
  const HypergraphSpec spec = {.num_parts = 2, .capacities = {{7, 0}, {7, 0}}};
  const HyperLevel level = finest_level(hypergraph, spec);
  const HyperProblem problem = problem_of(hypergraph, spec);
  HyperState state(level, problem, {0, 0, 0});
  FastRandom random(1);
  EXPECT_FALSE(repair(state, random));
  EXPECT_EQ(state.part_weight(0).compute + state.part_weight(1).compute, 15);
  EXPECT_EQ(std::max(state.part_weight(0).compute, state.part_weight(1).compute), 9);
}

}  // namespace
}  // namespace contextile
