#include "partition/hypergraph/graph_anneal.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "partition/hypergraph/balance.h"
#include "partition/hypergraph/graph_support.h"

namespace contextile {
namespace {

HyperProblem problem_of(const Hypergraph& hypergraph, const HypergraphSpec& spec) {
  return {.num_parts = spec.num_parts,
          .capacity = part_capacities(hypergraph, spec),
          .traffic_weight = spec.traffic_weight,
          .per_compute = 0.01,
          .per_data = 0.01};
}

// Checks that `search` keeps its promises on random states.
template <typename Search>
void expect_keeps_its_word(Search search) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Hypergraph hypergraph = random_hypergraph({.vertices = 120, .nets = 200}, random);
    HypergraphSpec spec = {.num_parts = 2 + static_cast<std::int32_t>(seed % 7) * 5,
                           .eps_compute = 0.1,
                           .eps_data = 0.1,
                           .traffic_weight = seed % 3 == 0 ? 0.2 : 0};
    spec.fixed.resize(hypergraph.vertices());
    for (const VertexId v : IdRange<VertexId>(10)) {
      spec.fixed[v] = PartId{v.value % spec.num_parts};
    }
    const HyperLevel level = finest_level(hypergraph, spec);
    const HyperProblem problem = problem_of(hypergraph, spec);
    HyperState state(level, problem, pack(level, problem));
    if (seed % 2 == 1) {  // an infeasible state
      state = HyperState(level, problem, random_parts(hypergraph, spec, random));
    }
    const std::pair before = {state.overload(), state.score()};
    search(state, seed);
    const std::pair after = {state.overload(), state.score()};
    EXPECT_LE(after.first, before.first);
    EXPECT_LT(after, before);
    const HypergraphQuality quality = evaluate_hypergraph(hypergraph, spec, {state.parts()});
    EXPECT_EQ(quality.connectivity, state.connectivity());
    EXPECT_EQ(quality.feasible, state.overload() == 0);
    for (const VertexId v : IdRange<VertexId>(10)) EXPECT_EQ(state.part(v), spec.fixed[v]);
  }
}

TEST(Anneal, LowersTheScoreAndBreaksNoCapacity) {
  expect_keeps_its_word([](HyperState& state, std::uint64_t seed) {
    anneal(state, {.steps = 20'000, .seed = seed});
  });
}

TEST(RefineGreedily, LowersTheScoreAndBreaksNoCapacity) {
  expect_keeps_its_word(
      [](HyperState& state, std::uint64_t seed) { refine_greedily(state, seed); });
}

TEST(RefineGreedily, LeavesNoMoveThatGains) {
  std::mt19937_64 random(2);
  const Hypergraph hypergraph = random_hypergraph({.vertices = 50, .nets = 60}, random);
  const HypergraphSpec spec = {.num_parts = 3, .eps_compute = 9, .eps_data = 9};
  const HyperLevel level = finest_level(hypergraph, spec);
  const HyperProblem problem = problem_of(hypergraph, spec);
  HyperState state(level, problem, random_parts(hypergraph, spec, random));
  refine_greedily(state, 1);
  for (const VertexId v : level.vertices()) {
    for (const PartId p : problem.parts()) EXPECT_GE(state.delta(v, p).connectivity, 0);
  }
}

TEST(Anneal, DoesNothingWhereNothingMayMove) {
  std::mt19937_64 random(4);
  const Hypergraph hypergraph = random_hypergraph({.vertices = 10}, random);
  HypergraphSpec spec = {.num_parts = 3};
  spec.fixed = random_parts(hypergraph, spec, random);
  const HyperLevel level = finest_level(hypergraph, spec);
  const HyperProblem problem = problem_of(hypergraph, spec);
  HyperState state(level, problem, spec.fixed);
  anneal(state, {.steps = 1000});
  EXPECT_EQ(state.parts(), spec.fixed);
}

}  // namespace
}  // namespace contextile
