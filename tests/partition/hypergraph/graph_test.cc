#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "contextile/extend/hypergraph.h"
#include "partition/hypergraph/graph_support.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Nets {0,1,2} of weight 5 and {2,3} of weight 7, {1} of weight 100.
Hypergraph three_nets() {
  Hypergraph hypergraph;
  hypergraph.vertex_weights = {{1, 0}, {2, 10}, {3, 0}, {4, 30}};
  hypergraph.add_net(pins({0, 1, 2}), 5);
  hypergraph.add_net(pins({2, 3}), 7);
  hypergraph.add_net(pins({1}), 100);
  return hypergraph;
}

TEST(HypergraphQuality, CountsWhatIsCut) {
  const Hypergraph hypergraph = three_nets();
  const HypergraphPartition partition = {parts({0, 1, 2, 2})};
  EXPECT_EQ(connectivity(hypergraph, 3, partition), 10);
  EXPECT_THAT(part_weights(hypergraph, 3, partition),
              ElementsAre(HyperWeight{1, 0}, HyperWeight{2, 10}, HyperWeight{7, 30}));
  const HypergraphQuality quality =
      evaluate_hypergraph(hypergraph, {.num_parts = 3, .traffic_weight = 2}, partition);
  EXPECT_EQ(quality.connectivity, 10);
  EXPECT_EQ(quality.cut_nets, 1);
  EXPECT_EQ(quality.max_part_traffic, 5);
  EXPECT_DOUBLE_EQ(quality.objective, 10 + 2 * 3 * 5);
  EXPECT_NEAR(quality.compute_overload, 7 / (10 / 3.0) - 1, 1e-12);
  EXPECT_NEAR(quality.data_overload, 30 / (40 / 3.0) - 1, 1e-12);
  EXPECT_FALSE(quality.feasible);
}

TEST(HypergraphQuality, IsZeroWhereNothingWeighsAnything) {
  Hypergraph hypergraph;
  hypergraph.vertex_weights.resize(IdRange<VertexId>(3));
  const HypergraphQuality quality =
      evaluate_hypergraph(hypergraph, {.num_parts = 2}, {parts({0, 0, 0})});
  EXPECT_EQ(quality.compute_overload, 0);
  EXPECT_TRUE(quality.feasible);
}

TEST(PartCapacities, AreTheMeanWithSlackOrTheHeaviestVertex) {
  const Hypergraph hypergraph = three_nets();
  EXPECT_THAT(part_capacities(hypergraph, {.num_parts = 2, .eps_compute = 0.25, .eps_data = 0}),
              ElementsAre(HyperWeight{6, 30}, HyperWeight{6, 30}));
  EXPECT_THAT(part_capacities(hypergraph, {.num_parts = 1, .eps_compute = 9}),
              ElementsAre(HyperWeight{10, 40}));
  EXPECT_THAT(part_capacities(hypergraph, {.num_parts = 2, .capacities = {{1, 2}, {3, 4}}}),
              ElementsAre(HyperWeight{1, 2}, HyperWeight{3, 4}));
}

TEST(CheckHypergraph, NamesWhatIsBroken) {
  const auto message = [](const std::function<void(Hypergraph&)>& change) {
    Hypergraph hypergraph = three_nets();
    change(hypergraph);
    return message_of([&] { check_hypergraph(hypergraph, "h"); });
  };
  EXPECT_EQ(message([](Hypergraph&) {}), "no error");
  EXPECT_THAT(message([](Hypergraph& h) { h.pins[0] = VertexId{4}; }),
              HasSubstr("h: net 0: expected vertices from 0 to 3, found 4"));
  EXPECT_THAT(message([](Hypergraph& h) { h.pins[0] = VertexId{}; }), HasSubstr("found -1"));
  EXPECT_THAT(message([](Hypergraph& h) { h.pins[0] = VertexId{1}; }), HasSubstr("found 1 twice"));
  EXPECT_THAT(message([](Hypergraph& h) { h.net_offsets[1] = 0; }),
              HasSubstr("net 0: expected at least one pin"));
  EXPECT_THAT(message([](Hypergraph& h) { h.net_offsets[0] = 1; }), HasSubstr("net offset 0"));
  EXPECT_THAT(message([](Hypergraph& h) { h.net_offsets.pop_back(); }), HasSubstr("net offsets"));
  EXPECT_THAT(message([](Hypergraph& h) { h.pins.pop_back(); }), HasSubstr("number of pins"));
  EXPECT_THAT(message([](Hypergraph& h) { h.net_weights[NetId{1}] = -1; }),
              HasSubstr("net 1: expected a weight of at least 0"));
  EXPECT_THAT(message([](Hypergraph& h) { h.vertex_weights[VertexId{2}].data = -1; }),
              HasSubstr("vertex 2"));
  EXPECT_THAT(message([](Hypergraph& h) { h.net_weights[NetId{0}] = kMaxTotalWeight / 2; }),
              HasSubstr("net weights times pins"));
  EXPECT_THAT(message([](Hypergraph& h) {
                h.vertex_weights[VertexId{2}].compute = std::numeric_limits<std::int64_t>::max();
              }),
              HasSubstr("compute weights"));
}

TEST(HypergraphSpec, IsCheckedAgainstTheHypergraph) {
  const Hypergraph hypergraph = three_nets();
  const auto message = [&](const HypergraphSpec& spec) {
    return message_of([&] { static_cast<void>(partition_hypergraph(hypergraph, spec)); });
  };
  EXPECT_THAT(message({.num_parts = 0}), HasSubstr("num_parts: expected 1 to 65536, found 0"));
  EXPECT_THAT(message({.eps_compute = -0.1}), HasSubstr("found -0.1"));
  EXPECT_THAT(message({.eps_data = std::numeric_limits<double>::infinity()}), HasSubstr("inf"));
  EXPECT_THAT(message({.effort = 0}), HasSubstr("effort"));
  EXPECT_THAT(message({.num_starts = 0}), HasSubstr("num_starts"));
  EXPECT_THAT(message({.max_threads = -1}), HasSubstr("max_threads"));
  EXPECT_THAT(message({.capacities = {{1, 1}}}),
              HasSubstr("capacities: expected one for each of 2"));
  EXPECT_THAT(message({.capacities = {{1, 1}, {1, -1}}}),
              HasSubstr("capacities: expected at least 0"));
  EXPECT_THAT(message({.fixed = parts({0})}), HasSubstr("fixed: expected one part for each of 4"));
  EXPECT_THAT(message({.fixed = parts({0, -1, 2, 0})}), HasSubstr("fixed: vertex 2"));
  EXPECT_THAT(message({.start = parts({0, -1, 0, 0})}), HasSubstr("start: vertex 1"));
  EXPECT_THAT(message({.fixed = parts({1, -1, -1, -1}), .start = parts({0, 0, 0, 0})}),
              HasSubstr("start: vertex 0: expected its fixed part 1, found 0"));
}

TEST(HypergraphPartition, IsCheckedAgainstTheHypergraph) {
  const Hypergraph hypergraph = three_nets();
  EXPECT_THAT(message_of([&] {
                static_cast<void>(connectivity(hypergraph, 2, {parts({0, 1})}));
              }),
              HasSubstr("partition: expected one part for each of 4 vertices, found 2"));
  EXPECT_THAT(message_of([&] {
                static_cast<void>(part_weights(hypergraph, 2, {parts({0, 1, 2, 0})}));
              }),
              HasSubstr("partition: vertex 2: expected a part from 0 to 1, found 2"));
}

}  // namespace
}  // namespace contextile
