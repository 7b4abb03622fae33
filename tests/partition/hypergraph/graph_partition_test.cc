#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "contextile/extend/hypergraph.h"
#include "partition/hypergraph/graph_support.h"

namespace contextile {
namespace {

TEST(PartitionHypergraph, IsNearTheBestOfTinyInstancesAndFeasibleWhereverTheyAre) {
  double ratio_sum = 0;
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Hypergraph hypergraph =
        random_hypergraph({.vertices = 9, .nets = 12, .largest_net = 4}, random);
    HypergraphSpec spec = {.num_parts = 2 + static_cast<std::int32_t>(seed % 2),
                           .eps_compute = 0.05,
                           .eps_data = 0.3,
                           .traffic_weight = seed % 3 == 0 ? 0.1 : 0,
                           .num_starts = 2,
                           .seed = seed};
    if (seed % 5 == 0) {
      spec.fixed = parts({1, -1, -1, -1, 0, -1, -1, -1, -1});
    }
    const std::optional<double> best = best_objective(hypergraph, spec);
    if (!best) continue;
    const HypergraphQuality found =
        evaluate_hypergraph(hypergraph, spec, partition_hypergraph(hypergraph, spec));
    EXPECT_TRUE(found.feasible);
    EXPECT_GE(found.objective, *best - 1e-9);
    ratio_sum += (found.objective + 1) / (*best + 1);
    ++compared;
  }
  EXPECT_GT(compared, 60);
  EXPECT_LT(ratio_sum / compared, 1.05);
}

TEST(PartitionHypergraph, IsTheSameOnAnyNumberOfThreads) {
  std::mt19937_64 random(11);
  const Hypergraph hypergraph = random_hypergraph({.vertices = 900, .nets = 1500}, random);
  HypergraphSpec spec = {.num_parts = 6, .traffic_weight = 0.1, .effort = 0.3};
  spec.max_threads = 1;
  const auto one = partition_hypergraph(hypergraph, spec).part;
  for (const std::int32_t threads : {0, 2, 3}) {
    spec.max_threads = threads;
    EXPECT_EQ(partition_hypergraph(hypergraph, spec).part, one) << threads;
  }
  spec.seed = 2;
  EXPECT_NE(partition_hypergraph(hypergraph, spec).part, one);
}

TEST(PartitionHypergraph, KeepsFixedVertices) {
  std::mt19937_64 random(12);
  const Hypergraph hypergraph = random_hypergraph({.vertices = 700, .nets = 900}, random);
  HypergraphSpec spec = {.num_parts = 5, .effort = 0.3};
  for (std::int32_t v = 0; v < 700; ++v) {
    spec.fixed.push_back(v % 7 < 5 ? PartId{} : PartId{v % 5});
  }
  const HypergraphPartition partition = partition_hypergraph(hypergraph, spec);
  for (const VertexId v : hypergraph.vertices()) {
    if (spec.fixed[v].valid()) {
      ASSERT_EQ(partition.part[v], spec.fixed[v]);
    }
  }
  EXPECT_TRUE(evaluate_hypergraph(hypergraph, spec, partition).feasible);
}

TEST(PartitionHypergraph, NeverEndsWorseThanItsStart) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    // Capacities that just fit a hidden partition, which only luck finds again.
    const Hypergraph hypergraph = random_hypergraph({.vertices = 60, .nets = 80}, random);
    HypergraphSpec spec = {
        .num_parts = 5, .traffic_weight = seed % 2 == 0 ? 0 : 0.3, .effort = 0.2};
    spec.start = random_parts(hypergraph, spec, random);
    spec.capacities = part_weights(hypergraph, 5, {spec.start});
    const HypergraphQuality start = evaluate_hypergraph(hypergraph, spec, {spec.start});
    ASSERT_TRUE(start.feasible);
    const HypergraphQuality found =
        evaluate_hypergraph(hypergraph, spec, partition_hypergraph(hypergraph, spec));
    EXPECT_TRUE(found.feasible);
    EXPECT_LE(found.objective, start.objective);
  }
}

TEST(PartitionHypergraph, IsBetterWithThePartitionsOfNeighbouringTiles) {
  const Hypergraph hypergraph = causal_attention(32);
  const HypergraphSpec spec = {.num_parts = 8, .eps_compute = 0.1, .eps_data = 0.1};
  const HypergraphPartition partition = partition_hypergraph(hypergraph, spec);
  const HypergraphQuality quality = evaluate_hypergraph(hypergraph, spec, partition);
  EXPECT_TRUE(quality.feasible);
  // If every device owns every eighth block and computes its rows, it receives all earlier keys.
  HypergraphPartition rows;
  for (std::int32_t b = 0; b < 32; ++b) rows.part.push_back(PartId{b % 8});
  for (std::int32_t q = 0; q < 32; ++q) {
    for (std::int32_t k = 0; k <= q; ++k) rows.part.push_back(PartId{q % 8});
  }
  EXPECT_LT(quality.connectivity, connectivity(hypergraph, 8, rows));
}

TEST(PartitionHypergraph, PacksTailsAThousandTimesSmallerThanBlocks) {
  Hypergraph hypergraph = causal_attention(24, 0.001);
  const HypergraphSpec spec = {
      .num_parts = 6, .eps_compute = 0.05, .eps_data = 0.05, .effort = 0.5};
  EXPECT_TRUE(
      evaluate_hypergraph(hypergraph, spec, partition_hypergraph(hypergraph, spec)).feasible);
}

TEST(PartitionHypergraph, TakesAVertexHeavierThanAPart) {
  std::mt19937_64 random(13);
  Hypergraph hypergraph = random_hypergraph({.vertices = 100, .nets = 150}, random);
  hypergraph.vertex_weights[VertexId{17}] = {100'000, 3};
  const HypergraphSpec spec = {.num_parts = 4, .effort = 0.3};
  EXPECT_TRUE(
      evaluate_hypergraph(hypergraph, spec, partition_hypergraph(hypergraph, spec)).feasible);
  // With capacities given, only the part that must hold the vertex is above its capacity.
  HypergraphSpec tight = spec;
  tight.capacities.assign(IdRange<PartId>(4), {2000, 2000});
  const auto weights = part_weights(hypergraph, 4, partition_hypergraph(hypergraph, tight));
  int over = 0;
  for (const HyperWeight& weight : weights) over += weight.compute > 2000 ? 1 : 0;
  EXPECT_EQ(over, 1);
}

TEST(PartitionHypergraph, TakesADimensionWithoutWeights) {
  std::mt19937_64 random(14);
  Hypergraph hypergraph = random_hypergraph({.vertices = 300, .nets = 400}, random);
  for (const bool compute : {true, false}) {
    Hypergraph changed = hypergraph;
    for (HyperWeight& weight : changed.vertex_weights) (compute ? weight.compute : weight.data) = 0;
    const HypergraphSpec spec = {.num_parts = 4, .effort = 0.3};
    EXPECT_TRUE(evaluate_hypergraph(changed, spec, partition_hypergraph(changed, spec)).feasible);
  }
  for (HyperWeight& weight : hypergraph.vertex_weights) weight = {};
  EXPECT_EQ(connectivity(hypergraph, 4, partition_hypergraph(hypergraph, {.num_parts = 4})), 0);
}

TEST(PartitionHypergraph, TakesWeightsNearTheLimit) {
  std::mt19937_64 random(15);
  Hypergraph hypergraph = random_hypergraph({.vertices = 100, .nets = 100}, random);
  for (HyperWeight& weight : hypergraph.vertex_weights) {
    weight = {weight.compute << 49, weight.data << 49};
  }
  for (std::int64_t& weight : hypergraph.net_weights) weight <<= 46;
  const HypergraphSpec spec = {
      .num_parts = 7, .eps_compute = 0.1, .eps_data = 0.1, .traffic_weight = 0.1, .effort = 0.3};
  EXPECT_TRUE(
      evaluate_hypergraph(hypergraph, spec, partition_hypergraph(hypergraph, spec)).feasible);
}

TEST(PartitionHypergraph, TakesTheEmptyTheOneAndMorePartsThanVertices) {
  EXPECT_TRUE(partition_hypergraph({}, {.num_parts = 3}).part.empty());
  const Hypergraph hypergraph = causal_attention(3);
  EXPECT_EQ(partition_hypergraph(hypergraph, {.num_parts = 1}).part,
            parts({0, 0, 0, 0, 0, 0, 0, 0, 0}));
  const HypergraphSpec many = {.num_parts = 500, .effort = 0.1, .num_starts = 2};
  EXPECT_TRUE(
      evaluate_hypergraph(hypergraph, many, partition_hypergraph(hypergraph, many)).feasible);
}

TEST(PartitionHypergraph, TakesThousandsOfParts) {
  std::mt19937_64 random(16);
  const Hypergraph hypergraph = random_hypergraph({.vertices = 9000, .nets = 9000}, random);
  const HypergraphSpec spec = {
      .num_parts = 2048, .eps_compute = 0.5, .eps_data = 0.5, .effort = 0.02, .num_starts = 2};
  const HypergraphPartition partition = partition_hypergraph(hypergraph, spec);
  EXPECT_TRUE(evaluate_hypergraph(hypergraph, spec, partition).feasible);
}

}  // namespace
}  // namespace contextile
