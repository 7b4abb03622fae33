#include "partition/hypergraph/graph_state.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "partition/hypergraph/graph_support.h"

namespace contextile {
namespace {

struct StateInstance {
  Hypergraph hypergraph;
  HypergraphSpec spec;
  HyperProblem problem;
  HyperLevel level;

  StateInstance(std::int32_t num_parts, double traffic_weight, std::mt19937_64& random)
      : hypergraph(random_hypergraph({.vertices = 60, .nets = 90, .largest_net = 12}, random)),
        spec{.num_parts = num_parts, .traffic_weight = traffic_weight},
        problem{.num_parts = num_parts,
                .capacity = part_capacities(hypergraph, spec),
                .traffic_weight = traffic_weight,
                .per_compute = 0.01,
                .per_data = 0.02},
        level(finest_level(hypergraph, spec)) {}
};

// With 5 parts, nets have arrays; with 40, some have lists and some have arrays; with 1000, lists.
class HyperStateWith : public testing::TestWithParam<std::int32_t> {};

TEST_P(HyperStateWith, DeltasEqualRecomputation) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const StateInstance instance(GetParam(), seed % 2 == 0 ? 0 : 0.5, random);
    HyperState state(instance.level, instance.problem,
                     random_parts(instance.hypergraph, instance.spec, random));
    for (int step = 0; step < 300; ++step) {
      const VertexId v{static_cast<std::int32_t>(random() % 60)};
      // Half of the moves join a neighbour, because among many parts others hardly ever meet.
      const PartId to = step % 2 == 0
                            ? state.part(VertexId{static_cast<std::int32_t>(random() % 60)})
                            : PartId{static_cast<std::int32_t>(
                                  random() % static_cast<std::uint64_t>(GetParam()))};
      const HyperDelta delta = state.delta(v, to);
      const double overload_delta = state.overload_delta(v, to);
      const std::int64_t connectivity_before = state.connectivity();
      const double score_before = state.score();
      const double overload_before = state.overload();
      state.move(v, to);
      const HypergraphPartition partition = {state.parts()};
      ASSERT_EQ(partition.part[v], to);
      const HypergraphQuality quality =
          evaluate_hypergraph(instance.hypergraph, instance.spec, partition);
      ASSERT_EQ(connectivity_before + delta.connectivity, quality.connectivity);
      ASSERT_EQ(state.connectivity(), quality.connectivity);
      ASSERT_EQ(state.objective(), quality.objective);
      ASSERT_NEAR(score_before + delta.total(), state.score(), 1e-9 * state.score());
      ASSERT_NEAR(overload_before + overload_delta, state.overload(), 1e-9);
      ASSERT_EQ(state.overload() == 0, quality.feasible);
      const auto weights = part_weights(instance.hypergraph, GetParam(), partition);
      ASSERT_EQ(state.part_weight(to), weights[to]);
    }
  }
}

TEST_P(HyperStateWith, AffinityEqualsDeltas) {
  std::mt19937_64 random(7);
  const StateInstance instance(GetParam(), 0, random);
  const HyperState state(instance.level, instance.problem,
                         random_parts(instance.hypergraph, instance.spec, random));
  Affinity affinity(instance.problem);
  for (const VertexId v : instance.level.vertices()) {
    affinity.measure(state, v);
    for (const PartId p : instance.problem.parts()) {
      if (p == state.part(v)) continue;
      ASSERT_EQ(affinity.cost(p), state.delta(v, p).connectivity) << v.value << " to " << p.value;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parts, HyperStateWith, testing::Values(2, 5, 40, 1000));

TEST(NetCounts, ListsEveryPartOnce) {
  std::mt19937_64 random(3);
  const Hypergraph hypergraph =
      random_hypergraph({.vertices = 60, .nets = 40, .largest_net = 30}, random);
  for (const std::int32_t num_parts : {3, 20, 300}) {
    NetCounts counts(hypergraph, num_parts);
    for (const NetId e : hypergraph.nets()) {
      IdVector<PartId, int> expected(IdRange<PartId>(num_parts), 0);
      for (std::size_t i = 0; i < hypergraph.pins_of(e).size(); ++i) {
        const PartId p{static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(num_parts))};
        counts.add(e, p);
        ++expected[p];
        if (random() % 3 == 0) {
          counts.remove(e, p);
          --expected[p];
        }
      }
      IdVector<PartId, int> found(IdRange<PartId>(num_parts), 0);
      std::int32_t lambda = 0;
      counts.for_each_part(e, [&](PartId p) {
        found[p] += counts.count(e, p);
        ++lambda;
      });
      ASSERT_EQ(found, expected);
      ASSERT_EQ(lambda, counts.lambda(e));
    }
  }
}

}  // namespace
}  // namespace contextile
