#include "partition/hypergraph/pair.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "partition/hypergraph/graph_level.h"
#include "partition/hypergraph/graph_support.h"

namespace contextile {
namespace {

// A random hypergraph with some vertices fixed and little room.
struct Instance {
  Instance(std::int32_t num_parts, std::mt19937_64& random) {
    hypergraph = random_hypergraph({.vertices = 70, .nets = 110}, random);
    spec.num_parts = num_parts;
    spec.eps_compute = spec.eps_data = 0.05;
    spec.fixed.resize(hypergraph.vertices());
    for (VertexId v{0}; v.value < 70; v.value += 9) {
      spec.fixed[v] =
          PartId{static_cast<std::int32_t>(random() % static_cast<std::size_t>(num_parts))};
    }
    level = finest_level(hypergraph, spec);
    problem = {.num_parts = num_parts,
               .capacity = part_capacities(hypergraph, spec),
               .per_compute = 1e-2,
               .per_data = 1e-2};
  }

  // Returns the faults of a partition, worst first.
  [[nodiscard]] std::pair<double, std::int64_t> rank(
      const IdVector<VertexId, PartId>& parts) const {
    const HyperState state(level, problem, parts);
    return {state.overload(), connectivity(hypergraph, spec.num_parts, {parts})};
  }
  [[nodiscard]] bool keeps_fixed(const IdVector<VertexId, PartId>& parts) const {
    for (const VertexId v : parts.ids()) {
      if (spec.fixed[v].valid() && parts[v] != spec.fixed[v]) return false;
    }
    return true;
  }

  Hypergraph hypergraph;
  HypergraphSpec spec;
  HyperLevel level;
  HyperProblem problem;
};

TEST(RefinePair, NeverGetsWorseAndSaysWhetherItChangedAnything) {
  int improved = 0;
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Instance instance(2, random);
    IdVector<VertexId, PartId> sides = random_parts(instance.hypergraph, instance.spec, random);
    const IdVector<VertexId, PartId> given = sides;
    FastRandom fast(seed);
    const bool changed = refine_pair(instance.level, instance.problem, sides, fast);
    EXPECT_TRUE(instance.keeps_fixed(sides));
    if (changed) {
      EXPECT_LT(instance.rank(sides), instance.rank(given));
      ++improved;
    } else {
      EXPECT_EQ(sides, given);
    }
  }
  EXPECT_GT(improved, 70);
}

TEST(RefinePair, FindsTheCheapestCutOfTwoCliquesAndABridge) {
  Hypergraph hypergraph;
  hypergraph.vertex_weights.assign(IdRange<VertexId>(12), {1, 0});
  for (std::int32_t side = 0; side < 2; ++side) {
    for (std::int32_t a = 0; a < 6; ++a) {
      for (std::int32_t b = a + 1; b < 6; ++b) {
        hypergraph.add_net(pins({2 * a + side, 2 * b + side}), 3);
      }
    }
  }
  hypergraph.add_net(pins({0, 1}), 1);
  const HyperLevel level = finest_level(hypergraph, {});
  const HyperProblem problem = {
      .num_parts = 2, .capacity = {{7, 0}, {7, 0}}, .per_compute = 1.0 / 6, .per_data = 1};
  IdVector<VertexId, PartId> sides(hypergraph.vertices(), PartId{0});
  std::fill(sides.begin() + 6, sides.end(), PartId{1});
  FastRandom random(1);
  EXPECT_TRUE(refine_pair(level, problem, sides, random));
  EXPECT_EQ(connectivity(hypergraph, 2, {sides}), 1);
}

TEST(RefinePairs, NeverGetsWorseAndKeepsItsCounts) {
  int improved = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto num_parts = static_cast<std::int32_t>(2 + seed % 6);
    const Instance instance(num_parts, random);
    HyperState state(instance.level, instance.problem,
                     random_parts(instance.hypergraph, instance.spec, random));
    const auto before = instance.rank(state.parts());
    refine_pairs(state, seed);
    const auto after = instance.rank(state.parts());
    EXPECT_LE(after, before);
    EXPECT_TRUE(instance.keeps_fixed(state.parts()));
    EXPECT_EQ(state.connectivity(), after.second);
    improved += after < before ? 1 : 0;
  }
  EXPECT_GT(improved, 35);
}

}  // namespace
}  // namespace contextile
