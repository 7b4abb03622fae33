#include "hypergraph/level.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "hypergraph/coarsen.h"
#include "hypergraph/support.h"

namespace contextile {
namespace {

using testing::ElementsAre;

HyperProblem problem_of(const Hypergraph& hypergraph, const HypergraphSpec& spec) {
  return {.num_parts = spec.num_parts,
          .capacity = part_capacities(hypergraph, spec),
          .traffic_weight = spec.traffic_weight,
          .per_compute = 1e-3,
          .per_data = 1e-3};
}

TEST(HyperLevel, FinestDropsWhatCannotBeCut) {
  Hypergraph hypergraph;
  hypergraph.vertex_weights.resize(3);
  hypergraph.add_net(std::vector<std::int32_t>{2, 0}, 5);
  hypergraph.add_net(std::vector<std::int32_t>{1}, 9);
  hypergraph.add_net(std::vector<std::int32_t>{0, 2}, 6);
  hypergraph.add_net(std::vector<std::int32_t>{0, 1}, 0);
  const HyperLevel level = finest_level(hypergraph, {});
  EXPECT_THAT(level.graph.net_weights, ElementsAre(11));
  EXPECT_THAT(level.graph.pins, ElementsAre(0, 2));
  EXPECT_THAT(level.nets_of(0), ElementsAre(0));
  EXPECT_TRUE(level.nets_of(1).empty());
}

TEST(HyperLevel, ContractionKeepsEveryObjective) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Hypergraph hypergraph = random_hypergraph({.vertices = 40, .nets = 60}, random);
    const HyperLevel fine = finest_level(hypergraph, {});
    std::vector<std::int32_t> cluster(40);
    for (std::size_t v = 0; v < 40; ++v) {
      cluster[v] = v < 12 ? static_cast<std::int32_t>(v) : static_cast<std::int32_t>(random() % 12);
    }
    const HyperLevel coarse = contract(fine, cluster, 12);
    HypergraphPartition of_clusters;
    for (int c = 0; c < 12; ++c)
      of_clusters.part.push_back(static_cast<std::int32_t>(random() % 4));
    HypergraphPartition of_vertices;
    for (const std::int32_t c : cluster) {
      of_vertices.part.push_back(of_clusters.part[static_cast<std::size_t>(c)]);
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
  const HyperProblem problem = problem_of(hypergraph, {.num_parts = 4});
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
    spec.fixed.push_back(static_cast<std::int32_t>(random() % 4) - 1);
  }
  spec.start = random_parts(hypergraph, spec, random);
  const HyperLevel finest = finest_level(hypergraph, spec);
  const HyperLevel* fine = &finest;
  const std::vector<HyperStep> steps = coarsen(finest, problem_of(hypergraph, spec), 400, 1);
  ASSERT_FALSE(steps.empty());
  for (const HyperStep& step : steps) {
    for (std::size_t v = 0; v < step.cluster.size(); ++v) {
      const auto c = static_cast<std::size_t>(step.cluster[v]);
      ASSERT_EQ(fine->fixed[v], step.coarse.fixed[c]);
      ASSERT_EQ(fine->start[v], step.coarse.start[c]);
    }
    fine = &step.coarse;
  }
}

}  // namespace
}  // namespace contextile
