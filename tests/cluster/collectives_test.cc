// Costs of collectives: the closed form by hand, groups of other sizes, cluster files.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "contextile/base.h"
#include "contextile/cluster.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using enum Collective;
using testing::AllOf;
using testing::HasSubstr;

Cluster with_keys(const std::string& keys) {
  return parse_cluster_json("{\"preset\": \"dgx-h100:2x8\", " + keys + "}", "c.json");
}

Cluster cluster_with(const std::vector<CollectiveCost>& costs) {
  Cluster cluster;
  cluster.nodes = 16;
  cluster.collectives = costs;
  check_cluster(cluster);
  return cluster;
}

TEST(CollectiveCost, IsAStartARampAndARate) {
  const CollectiveCost cost{kAllGather, 8, 0, 10, 4, 400};
  EXPECT_DOUBLE_EQ(cost.us(0), 10);
  EXPECT_DOUBLE_EQ(cost.us(4e6), 10 + 4 * 2 + 4 * 2.5);  // 2.5 us per MB at 400 GB/s
  EXPECT_DOUBLE_EQ(cost.us(900e6), 10 + 4 * 30 + 900 * 2.5);
}

TEST(CollectiveCost, OfOtherSizesFollowsLinesOverTheSizeAndItsReciprocal) {
  const Cluster cluster = cluster_with({{kAllGather, 8, 0, 16, 7, 1000 / 1.75},
                                        {kAllGather, 2, 0, 4, 4, 1000},
                                        {kReduceScatter, 4, 0, 9, 1, 500}});
  const auto expect = [&](std::int32_t devices, const CollectiveCost& expected) {
    const CollectiveCost found = cluster.collective_cost(kAllGather, devices).value();
    EXPECT_EQ(found.op, expected.op);
    EXPECT_DOUBLE_EQ(found.start_us, expected.start_us) << devices;
    EXPECT_DOUBLE_EQ(found.ramp_us, expected.ramp_us) << devices;
    EXPECT_DOUBLE_EQ(found.gbytes_per_s, expected.gbytes_per_s) << devices;
  };
  expect(2, {kAllGather, 2, 0, 4, 4, 1000});
  expect(8, {kAllGather, 8, 0, 16, 7, 1000 / 1.75});
  // A third of the way from 2 to 8, and 2/3 of that from 1/2 to 1/8.
  expect(4, {kAllGather, 4, 0, 8, 6, 1000 / 1.5});
  // Two more devices for each microsecond, and 1/2 - 1/16 is 7/6 of 1/2 - 1/8.
  expect(16, {kAllGather, 16, 0, 32, 7.5, 1000 / 1.875});
  // One size alone holds for all.
  EXPECT_EQ(cluster.collective_cost(kReduceScatter, 8), cluster.collectives.back());
  EXPECT_EQ(cluster.collective_cost(kReduceScatter, 2), cluster.collectives.back());
  EXPECT_EQ(cluster.collective_cost(kAllReduce, 8), std::nullopt);
  EXPECT_EQ(cluster.collective_cost(kAllGather, 16, 2), std::nullopt);
  EXPECT_EQ(Cluster().collective_cost(kAllGather, 8), std::nullopt);
}

TEST(CollectiveCost, DoesNotFallBeyondTheLastSize) {
  const Cluster cluster =
      cluster_with({{kAllToAll, 2, 0, 12, 6, 400}, {kAllToAll, 4, 0, 10, 5, 500}});
  EXPECT_DOUBLE_EQ(cluster.collective_cost(kAllToAll, 3)->start_us, 11);
  const CollectiveCost beyond = cluster.collective_cost(kAllToAll, 64).value();
  EXPECT_EQ(beyond.start_us, 10);
  EXPECT_EQ(beyond.ramp_us, 5);
  EXPECT_EQ(beyond.gbytes_per_s, 500);
}

TEST(CollectiveCost, BetweenNodesGoesNoFurtherThanMeasured) {
  const Cluster cluster =
      cluster_with({{kAllReduce, 0, 2, 100, 0, 40}, {kAllReduce, 0, 4, 200, 0, 20}});
  EXPECT_EQ(cluster.collective_cost(kAllReduce, 16, 2), cluster.collectives.front());
  EXPECT_DOUBLE_EQ(cluster.collective_cost(kAllReduce, 24, 3)->start_us, 150);
  EXPECT_EQ(cluster.collective_cost(kAllReduce, 64, 8), std::nullopt);
  EXPECT_EQ(cluster.collective_cost(kAllReduce, 8), std::nullopt) << "inside a node";
}

TEST(CollectiveCost, OfAPartOfEachNodeHasItsShareOfTheNics) {
  Cluster cluster = load_cluster("dgx-h100:4x8");
  cluster.collectives = {{kAllGather, 4, 0, 10, 2, 400}, {kAllGather, 0, 2, 50, 3, 200}};
  const std::vector<CollectiveCost> quarter = {cluster.collectives.front(),
                                               {kAllGather, 0, 2, 50, 6, 50}};
  EXPECT_EQ(cluster.group(4, 1).collectives, quarter);  // four TP ranks share them
  EXPECT_EQ(cluster.consecutive(Rank{6}, 4).collectives, quarter) << "two devices of two nodes";
  EXPECT_EQ(cluster.group(1, 1).collectives, cluster.collectives);
  EXPECT_EQ(cluster.consecutive(Rank{0}, 16).collectives, cluster.collectives);
}

TEST(CollectiveCost, OfPresetsGrowsWithDevicesAndBytes) {
  EXPECT_EQ(load_cluster("dgx-h200").collectives, measured_collectives("dgx-h100"));
  EXPECT_THAT(message_of([] { return measured_collectives("h20"); }),
              HasSubstr("expected a preset with measured ones, found 'h20'"));
  for (const char* preset : {"p4de", "dgx-h100", "b200", "gb200-nvl72"}) {
    const Cluster cluster = cluster_with(measured_collectives(preset));
    for (const Collective op : kCollectives) {
      double last_us = 0;
      for (const std::int32_t devices : {2, 3, 4, 8, 16, 72}) {
        const CollectiveCost cost = cluster.collective_cost(op, devices).value();
        EXPECT_LT(cost.us(1e6), cost.us(2e6));
        EXPECT_GE(cost.us(1e9), last_us) << preset << ' ' << to_string(op) << ' ' << devices;
        last_us = cost.us(1e9);
      }
    }
  }
  // 8 B200, predicted from the 2 and 4 of a GB200: 761 us measured for 512 MiB.
  const Cluster gb200 = load_cluster("gb200-nvl72");
  EXPECT_NEAR(gb200.collective_cost(kAllGather, 8)->us(512 << 20), 761, 0.1 * 761);
}

TEST(CollectivesOfFiles, AreRead) {
  const Cluster cluster = with_keys(R"("collectives": [
      {"op": "all_gather", "devices": 8, "start_us": 10.5, "ramp_us": 5, "gbytes_per_s": 431},
      {"op": "all_to_all", "nodes": 2, "start_us": 0, "gbytes_per_s": 50}])");
  const std::vector<CollectiveCost> expected = {{kAllGather, 8, 0, 10.5, 5, 431},
                                                {kAllToAll, 0, 2, 0, 0, 50}};
  EXPECT_EQ(cluster.collectives, expected);
  EXPECT_EQ(parse_cluster_json(to_json(cluster), "c.json").collectives, expected);
  EXPECT_TRUE(with_keys(R"("collectives": [])").collectives.empty());
  EXPECT_THAT(to_json(with_keys(R"("collectives": [])")), testing::Not(HasSubstr("collectives")));
}

TEST(CollectivesOfFiles, OfAPresetHoldForItsLinksOnly) {
  const std::vector<CollectiveCost>& measured = measured_collectives("dgx-h100");
  EXPECT_EQ(with_keys(R"("launch_us": 1)").collectives, measured);
  EXPECT_TRUE(with_keys(R"("intra_gbytes_per_s": 200)").collectives.empty());
  EXPECT_EQ(with_keys(R"("inter_latency_us": 5)").collectives, measured) << "inside a node";
  const std::vector<CollectiveCost> p4de =
      parse_cluster_json(R"({"preset": "p4de", "inter_gbytes_per_s_per_node": 100})", "c.json")
          .collectives;
  EXPECT_EQ(p4de.size() + 1, measured_collectives("p4de").size());
  for (const CollectiveCost& cost : p4de) EXPECT_EQ(cost.nodes, 0);
  EXPECT_EQ(with_keys(R"("intra_latency_us": 5, "collectives": [
      {"op": "all_reduce", "devices": 2, "start_us": 1, "gbytes_per_s": 1}])")
                .collectives.size(),
            1U);
}

TEST(CollectivesOfFiles, RefuseWrongValues) {
  const auto refusal = [](const std::string& value) {
    return message_of([&] { return with_keys(fmt::format("\"collectives\": {}", value)); });
  };
  // One entry of three pieces.
  const auto entry = [&](const std::string& op, const std::string& size, const std::string& rest) {
    return refusal(fmt::format(R"([{{"op": {}, {}, {}}}])", op, size, rest));
  };
  constexpr const char* kOp = "\"all_gather\"";
  constexpr const char* kSize = "\"devices\": 8";
  constexpr const char* kRest = R"("start_us": 1, "gbytes_per_s": 2)";
  for (const char* value : {"null", "{}", "4", "\"all_gather\"", "[4]", "[null]"}) {
    EXPECT_THAT(refusal(value),
                AllOf(HasSubstr("c.json: collectives: expected an array of objects, "
                                "found")))
        << value;
  }
  EXPECT_THAT(refusal("[{}]"), HasSubstr("op: expected one of all_gather, reduce_scatter, "
                                         "all_reduce, all_to_all, found 'null'"));
  EXPECT_THAT(entry("\"broadcast\"", kSize, kRest), HasSubstr("broadcast"));
  EXPECT_THAT(entry(kOp, kSize, R"("starts_us": 1, "gbytes_per_s": 2)"),
              AllOf(HasSubstr("expected the keys op, devices"), HasSubstr("start_us")));
  for (const char* value : {"1", "-4", "2.5", "\"8\"", "4294967298"}) {
    EXPECT_THAT(entry(kOp, fmt::format("\"devices\": {}", value), kRest),
                HasSubstr("collectives: devices: expected an integer of at least 2, found"))
        << value;
  }
  EXPECT_THAT(entry(kOp, R"("nodes": 0)", kRest), HasSubstr("nodes: expected an integer"));
  EXPECT_THAT(entry(kOp, R"("nodes": 2, "devices": 16)", kRest),
              HasSubstr("expected 2 to 65536 devices of a node, or as many nodes, found 16 devices "
                        "and 2 nodes"));
  EXPECT_THAT(entry(kOp, R"("ramp_us": 1)", kRest), HasSubstr("found 0 devices and 0 nodes"));
  EXPECT_THAT(entry(kOp, R"("nodes": 65537)", kRest), HasSubstr("found 0 devices and 65537 nodes"));
  EXPECT_THAT(entry(kOp, kSize, R"("start_us": 1)"),
              HasSubstr("gbytes_per_s: expected a number, found 'null'"));
  EXPECT_THAT(entry(kOp, kSize, R"("start_us": 1, "gbytes_per_s": 0)"),
              HasSubstr("collectives.gbytes_per_s: expected 1e-09 to 1000000000000, found 0"));
  EXPECT_THAT(entry(kOp, kSize, R"("start_us": -1, "gbytes_per_s": 1)"),
              HasSubstr("collectives.start_us: expected 0 to"));
  EXPECT_THAT(entry(kOp, kSize, R"("start_us": 1, "ramp_us": -1, "gbytes_per_s": 1)"),
              HasSubstr("collectives.ramp_us: expected 0 to"));
  const std::string one = fmt::format(R"({{"op": {}, {}, {}}})", kOp, kSize, kRest);
  EXPECT_THAT(refusal(fmt::format("[{}, {}]", one, one)),
              HasSubstr("expected all_gather of 8 devices once, found it twice"));
  std::string many = "[" + one;
  for (int i = 0; i < 256; ++i) many += ", " + one;
  EXPECT_THAT(refusal(many + "]"), HasSubstr("collectives: expected up to 256 costs, found 257"));
}

// A share of the NICs makes times longer, but not longer than a cluster may have.
TEST(CollectivesOfFiles, WithTheLargestTimesCanBeShared) {
  const Cluster cluster = with_keys(R"("collectives": [{"op": "all_reduce", "nodes": 2,
      "start_us": 0, "ramp_us": 1e9, "gbytes_per_s": 1e-9}])");
  const Cluster group = cluster.group(8, 1);
  EXPECT_NO_THROW(check_cluster(group));
  EXPECT_EQ(group.collectives.front().ramp_us, 1e9);
}

}  // namespace
}  // namespace contextile
