#include "partition/hypergraph/graph_level.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "partition/hypergraph/coarsen.h"
#include "partition/hypergraph/graph_support.h"

namespace contextile {
namespace {

using testing::ElementsAre;

HyperProblem level_problem(const Hypergraph& hypergraph, const HypergraphSpec& spec) {
  return {.num_parts = spec.num_parts,
          .capacity = part_capacities(hypergraph, spec),
          .traffic_weight = spec.traffic_weight,
          .per_compute = 1e-3,
          .per_data = 1e-3};
}

TEST(HyperLevel, FinestDropsWhatCannotBeCut) {
  Hypergraph hypergraph;
  hypergraph.vertex_weights.resize(IdRange<VertexId>(3));
  hypergraph.add_net(pins({2, 0}), 5);
  hypergraph.add_net(pins({1}), 9);
  hypergraph.add_net(pins({0, 2}), 6);
  hypergraph.add_net(pins({0, 1}), 0);
  const HyperLevel level = finest_level(hypergraph, {});
  EXPECT_THAT(level.graph.net_weights, ElementsAre(11));
  EXPECT_EQ(level.graph.pins, pins({0, 2}));
  EXPECT_THAT(level.nets_of(VertexId{0}), ElementsAre(NetId{0}));
  EXPECT_TRUE(level.nets_of(VertexId{1}).empty());
}

TEST(HyperLevel, ContractionKeepsEveryObjective) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Hypergraph hypergraph = random_hypergraph({.vertices = 40, .nets = 60}, random);
    const HyperLevel fine = finest_level(hypergraph, {});
    IdVector<VertexId, VertexId> cluster(hypergraph.vertices());
    for (const VertexId v : cluster.ids()) {
      cluster[v] = v.value < 12 ? v : VertexId{static_cast<std::int32_t>(random() % 12)};
    }
    const HyperLevel coarse = contract(fine, cluster, 12);
    HypergraphPartition of_clusters;
    for (int c = 0; c < 12; ++c)
      of_clusters.part.push_back(PartId{static_cast<std::int32_t>(random() % 4)});
    HypergraphPartition of_vertices;
    for (const VertexId c : cluster) {
      of_vertices.part.push_back(of_clusters.part[c]);
    }
    const HypergraphSpec spec = {.num_parts = 4, .traffic_weight = 1};
    EXPECT_EQ(connectivity(coarse.graph, 4, of_clusters), connectivity(hypergraph, 4, of_vertices));
    EXPECT_EQ(part_weights(coarse.graph, 4, of_clusters), part_weights(hypergraph, 4, of_vertices));
    EXPECT_EQ(evaluate_hypergraph(coarse.graph, spec, of_clusters).objective,
              evaluate_hypergraph(hypergraph, spec, of_vertices).objective);
  }
}

TEST(Coarsen, ReachesFewVerticesAndLosesNoWeight) {
  const Hypergraph hypergraph = causal_attention(60);
  const HyperProblem problem = level_problem(hypergraph, {.num_parts = 4});
  const HyperLevel finest = finest_level(hypergraph, {});
  const std::vector<HyperStep> steps = coarsen(finest, problem, 400, 1);
  ASSERT_FALSE(steps.empty());
  EXPECT_LT(steps.back().coarse.num_vertices(), hypergraph.num_vertices() / 3);
  HyperWeight total;
  for (const HyperWeight& weight : hypergraph.vertex_weights) total = total + weight;
  for (const HyperStep& step : steps) {
    HyperWeight sum;
    for (const HyperWeight& weight : step.coarse.graph.vertex_weights) sum = sum + weight;
    EXPECT_EQ(sum, total);
  }
}

TEST(Coarsen, NeverMergesAcrossFixedOrStart) {
  std::mt19937_64 random(5);
  const Hypergraph hypergraph = causal_attention(60);
  HypergraphSpec spec{.num_parts = 3};
  for (std::int32_t v = 0; v < hypergraph.num_vertices(); ++v) {
    spec.fixed.push_back(PartId{static_cast<std::int32_t>(random() % 4) - 1});
  }
  spec.start = random_parts(hypergraph, spec, random);
  const HyperLevel finest = finest_level(hypergraph, spec);
  const HyperLevel* fine = &finest;
  const std::vector<HyperStep> steps = coarsen(finest, level_problem(hypergraph, spec), 400, 1);
  ASSERT_FALSE(steps.empty());
  for (const HyperStep& step : steps) {
    for (const VertexId v : step.cluster.ids()) {
      const VertexId c = step.cluster[v];
      ASSERT_EQ(fine->fixed[v], step.coarse.fixed[c]);
      ASSERT_EQ(fine->start[v], step.coarse.start[c]);
    }
    fine = &step.coarse;
  }
}

}  // namespace
}  // namespace contextile
