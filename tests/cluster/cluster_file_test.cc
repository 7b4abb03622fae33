// The cost model's keys of cluster files.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "contextile/cluster.h"

namespace contextile {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Cluster with(const std::string& items) {
  return parse_cluster_json(fmt::format(R"({{"preset": "dgx-h100:2x4", {}}})", items), "c.json");
}

std::string refusal(const std::string& items) {
  try {
    static_cast<void>(with(items));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

void expect_same_costs(const Cluster& a, const Cluster& b) {
  EXPECT_EQ(a.memory_gbytes_per_s, b.memory_gbytes_per_s);
  EXPECT_EQ(a.intra_latency_us, b.intra_latency_us);
  EXPECT_EQ(a.inter_latency_us, b.inter_latency_us);
  EXPECT_EQ(a.launch_us, b.launch_us);
  EXPECT_EQ(a.nics_per_node, b.nics_per_node);
  EXPECT_EQ(a.rails, b.rails);
  EXPECT_EQ(a.flow_gbytes_per_s, b.flow_gbytes_per_s);
  EXPECT_EQ(a.collectives, b.collectives);
  EXPECT_EQ(a.engine, b.engine);
  EXPECT_EQ(a.launches, b.launches);
  EXPECT_EQ(a.sms, b.sms);
  EXPECT_EQ(a.transfer_sms, b.transfer_sms);
  EXPECT_EQ(a.sm_fraction, b.sm_fraction);
  EXPECT_EQ(a.transfer_compute_us_per_mb, b.transfer_compute_us_per_mb);
  EXPECT_EQ(a.compute_slots_per_node, b.compute_slots_per_node);
  EXPECT_EQ(a.attention, b.attention);
}

TEST(CostModelKeys, AreReadOverThePresetsValues) {
  const Cluster cluster = with(R"("memory_gbytes_per_s": 1500.5, "intra_latency_us": 1,
      "inter_latency_us": 0, "launch_us": 0.25, "nics_per_node": 2, "rails": true,
      "flow_gbytes_per_s": [[2, 43], [8, 26.5]],
      "launches": "grouped", "sms": 100, "transfer_sms": 8, "sm_fraction": 0.125, "compute_slots_per_node": 1.5,
      "transfer_compute_us_per_mb": 40.5,
      "attention": {"q_rows": [1, 2], "kv_rows": [3], "forward": [0.5, 1],
                    "backward": [0.25, 2], "call_us": 0, "kernel_tile_rows": 0})");
  Cluster expected = load_cluster("dgx-h100:2x4");
  expected.memory_gbytes_per_s = 1500.5;
  expected.intra_latency_us = 1;
  expected.inter_latency_us = 0;
  expected.launch_us = 0.25;
  expected.nics_per_node = 2;
  expected.rails = true;
  expected.flow_gbytes_per_s = {{2, 43}, {8, 26.5}};
  expected.launches = LaunchOrder::kGrouped;
  expected.collectives.clear();  // measured on links of other latencies
  expected.sms = 100;
  expected.transfer_sms = 8;
  expected.sm_fraction = 0.125;
  expected.transfer_compute_us_per_mb = 40.5;
  expected.compute_slots_per_node = 1.5;
  expected.attention = {.q_rows = {1, 2},
                        .kv_rows = {3},
                        .forward = {0.5, 1},
                        .backward = {0.25, 2},
                        .call_us = 0,
                        .kernel_tile_rows = 0};
  expect_same_costs(cluster, expected);
  EXPECT_EQ(with(R"("launches": "concurrent")").launches, LaunchOrder::kConcurrent);
}

TEST(CostModelKeys, NameAKernelOfThePreset) {
  const GpuKernel& kernel = find_gpu_kernel("dgx-h100", "cudnn");
  EXPECT_EQ(with(R"("kernel": "cudnn")").attention, kernel.attention);
  EXPECT_EQ(with(R"("kernel": "cudnn", "attention_tflops": 5)").attention_tflops, 5);
  EXPECT_THAT(refusal(R"("kernel": "cudn")"), HasSubstr("did you mean 'cudnn'"));
  EXPECT_THAT(refusal(R"("kernel": 1)"), HasSubstr("kernel: expected text"));
  try {
    static_cast<void>(parse_cluster_json(R"({"kernel": "fa2"})", "c.json"));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("kernel: expected a \"preset\" that has it"));
  }
}

TEST(CostModelKeys, AreInTheNameOfThePreset) {
  const auto name = [](const std::string& json) { return parse_cluster_json(json, "c.json").name; };
  EXPECT_EQ(name(R"({"preset": "dgx-h100:2x4"})"), "dgx-h100");
  EXPECT_EQ(name(R"({"preset": "dgx-h100", "nodes": 3, "kernel": "fa2", "engine": "ring"})"),
            "dgx-h100,kernel=fa2,engine=ring");
  EXPECT_EQ(name(R"({"preset": "dgx-h100", "engine": {"name": "torch", "host_call_us": 1}})"),
            "custom");
  EXPECT_EQ(name(R"({"preset": "dgx-h100", "kernel": "fa2", "name": "mine"})"), "mine");
  EXPECT_EQ(name(R"({"preset": "dgx-h100", "launch_us": 9})"), "custom");
  EXPECT_EQ(name(R"({"preset": "dgx-h100", "nodes": 2, "name": "h20"})"), "h20");
  EXPECT_THAT(refusal(R"("launch_us": 9, "name": "p4de,engine=ring")"),
              HasSubstr("name: expected another name than a preset's"));
  const auto twice = [](const std::string& json) {
    try {
      static_cast<void>(parse_cluster_json(json, "c.json"));
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(twice(R"({"preset": "dgx-h100,kernel=fa3", "kernel": "fa2"})"),
              HasSubstr("kernel: expected it once, found it also in the preset"));
  EXPECT_THAT(twice(R"({"preset": "dgx-h100,engine=torch", "engine": "native"})"),
              HasSubstr("engine: expected it once"));
}

TEST(CostModelKeys, NameAnEngineOrGiveItsCosts) {
  EXPECT_EQ(with(R"("name": "same")").engine, EngineCosts{});
  EXPECT_EQ(with(R"("engine": "torch")").engine, find_engine("torch"));
  EngineCosts expected = find_engine("torch");
  expected.host_stage_us = 12.5;
  EXPECT_EQ(with(R"("engine": {"name": "torch", "host_stage_us": 12.5})").engine, expected);
  expected = {.name = "mine", .host_message_us = 2};
  const Cluster mine = with(R"("engine": {"name": "mine", "host_message_us": 2})");
  EXPECT_EQ(mine.engine, expected);
  EXPECT_EQ(parse_cluster_json(to_json(mine), "again").engine, expected);
  const auto message = [](const std::string& engine) { return refusal("\"engine\": " + engine); };
  EXPECT_THAT(message(R"("troch")"),
              HasSubstr("engine: expected one of native, torch, torch_graphs, dcp, te, ring, "));
  EXPECT_THAT(message(R"("torchs")"), HasSubstr("did you mean 'torch'"));
  EXPECT_THAT(message("3"), HasSubstr("engine: expected a name, or an object with a \"name\""));
  EXPECT_THAT(message("{}"), HasSubstr("engine: expected a name, or an object"));
  EXPECT_THAT(message(R"({"name": "mine", "host_us": 3})"),
              HasSubstr("engine: expected the keys name, merge_bytes_per_element, host_call_us"));
  EXPECT_THAT(message(R"({"name": "mine", "host_call_us": "3"})"),
              HasSubstr("engine: host_call_us: expected a number"));
  EXPECT_THAT(message(R"({"name": "mine", "host_call_us": -1})"),
              HasSubstr("engine.host_call_us: expected 0 to"));
}

TEST(CostModelKeys, MayBeLeftOut) {
  expect_same_costs(with(R"("name": "same")"), load_cluster("dgx-h100:2x4"));
  const Cluster plain = parse_cluster_json(
      R"({"nodes": 1, "devices_per_node": 2, "intra_gbytes_per_s": 1,
          "inter_gbytes_per_s_per_node": 1, "attention_tflops": 1})",
      "c.json");
  Cluster expected;
  expected.nics_per_node = 1;
  expect_same_costs(plain, expected);
}

TEST(CostModelKeys, OneKeyOfTheProfileKeepsTheOthers) {
  const Cluster preset = load_cluster("dgx-h100");
  const Cluster cluster = with(R"("attention": {"call_us": 1.5})");
  AttentionProfile expected = preset.attention;
  expected.call_us = 1.5;
  EXPECT_EQ(cluster.attention, expected);
}

TEST(CostModelKeys, ComeBackTheSame) {
  Rng rng(17);
  const auto positive = [&] {
    return std::exp(static_cast<double>(rng.next() % 4000) * 1e-2 - 20);
  };
  for (int i = 0; i < 200; ++i) {
    Cluster cluster;
    cluster.memory_gbytes_per_s = positive();
    cluster.intra_latency_us = rng.next() % 4 == 0 ? 0 : positive();
    cluster.inter_latency_us = positive();
    cluster.launch_us = positive();
    cluster.nics_per_node = static_cast<std::int32_t>(1 + rng.next() % 8);
    cluster.rails = rng.next() % 2 == 0;
    for (std::int32_t nodes = 1; rng.next() % 3 != 0; nodes += 5) {
      cluster.flow_gbytes_per_s.push_back({nodes, positive()});
    }
    cluster.launches = rng.next() % 2 == 0 ? LaunchOrder::kGrouped : LaunchOrder::kConcurrent;
    for (std::int32_t size = 2; rng.next() % 3 != 0; size += 5) {
      const Collective op = kCollectives[rng.next() % 4];
      cluster.collectives.push_back({op, size, 0, positive(), 0, positive()});
      cluster.collectives.push_back({op, 0, size, 0, positive(), positive()});
    }
    if (rng.next() % 2 == 0) cluster.engine = {"mine", positive(), 0, positive()};
    cluster.sms = static_cast<std::int32_t>(1 + rng.next() % 200);
    cluster.transfer_sms = static_cast<std::int32_t>(rng.next() % cluster.sms);
    cluster.sm_fraction = static_cast<double>(rng.next() % 1000) * 1e-3;
    cluster.transfer_compute_us_per_mb = rng.next() % 2 == 0 ? 0 : positive();
    cluster.compute_slots_per_node =
        rng.next() % 2 == 0 ? 0 : 0.001 + static_cast<double>(rng.next() % 9000) * 1e-3;
    AttentionProfile& profile = cluster.attention;
    profile = {};
    for (std::uint64_t rows = 1 + rng.next() % 9; profile.q_rows.size() < 3; rows += 7) {
      profile.q_rows.push_back(static_cast<std::int64_t>(rows));
    }
    profile.kv_rows = {5, 1'000'000};
    for (int j = 0; j < 6; ++j) {
      profile.forward.push_back(2.0 / static_cast<double>(1 + rng.next() % 1000));
      profile.backward.push_back(2.0 / static_cast<double>(1 + rng.next() % 1000));
    }
    profile.call_us = positive();
    profile.kernel_tile_rows = static_cast<std::int64_t>(rng.next() % 300);
    SCOPED_TRACE(to_json(cluster));
    expect_same_costs(parse_cluster_json(to_json(cluster), "c.json"), cluster);
  }
}

TEST(CostModelKeys, OfEveryPresetComeBackTheSame) {
  for (const ClusterPreset& preset : cluster_presets()) {
    SCOPED_TRACE(preset.name);
    expect_same_costs(parse_cluster_json(to_json(preset.cluster), "c.json"), preset.cluster);
  }
}

TEST(FlowRates, AreOneForAllOrGoByTheNodes) {
  EXPECT_EQ(load_cluster("dgx-h100:8x8").flow_limit_gbytes_per_s(), std::nullopt);
  Cluster cluster = with(R"("flow_gbytes_per_s": 4.5)");
  for (const std::int32_t nodes : {1, 2, 64}) {
    cluster.nodes = nodes;
    EXPECT_EQ(cluster.flow_limit_gbytes_per_s(), 4.5);
  }
  cluster = with(R"("flow_gbytes_per_s": [[2, 40], [8, 10]])");
  const std::pair<std::int32_t, double> expected[] = {{1, 40}, {2, 40}, {4, 20}, {8, 10}, {99, 10}};
  for (const auto& [nodes, rate] : expected) {
    cluster.nodes = nodes;
    EXPECT_DOUBLE_EQ(*cluster.flow_limit_gbytes_per_s(), rate) << nodes;
  }
  // A part of the cluster has fewer nodes.
  cluster.nodes = 8;
  EXPECT_EQ(cluster.consecutive(Rank{0}, 8).flow_limit_gbytes_per_s(), 40);
  EXPECT_EQ(with(R"("flow_gbytes_per_s": null)").flow_limit_gbytes_per_s(), std::nullopt);
  EXPECT_EQ(with(R"("flow_gbytes_per_s": [])").flow_limit_gbytes_per_s(), std::nullopt);
}

TEST(FlowRates, RefuseWrongLists) {
  for (const char* value :
       {"\"4\"", "true", "{}", "[4]", "[[2]]", "[[2, 4, 5]]", "[[2.5, 4]]", "[[0, 4]]", "[[-1, 4]]",
        "[[18446744073709551615, 4]]", "[[2, null]]"}) {
    EXPECT_THAT(refusal(fmt::format("\"flow_gbytes_per_s\": {}", value)),
                AllOf(HasSubstr("c.json: "),
                      HasSubstr("flow_gbytes_per_s: expected a rate or [[nodes, rate], …], found")))
        << value;
  }
  EXPECT_THAT(refusal(R"("flow_gbytes_per_s": [[8, 4], [8, 3]])"),
              HasSubstr("expected ascending numbers of nodes up to 65536, found 8 after 8"));
  EXPECT_THAT(refusal(R"("flow_gbytes_per_s": 0)"), HasSubstr("expected 1e-09 to 1000000000000"));
  EXPECT_THAT(refusal(R"("flow_gbytes_per_s": [[2, -4]])"), HasSubstr("found -4"));
}

TEST(CostModelKeys, RefuseWrongNumbers) {
  for (const char* key :
       {"memory_gbytes_per_s", "intra_latency_us", "inter_latency_us", "launch_us", "sm_fraction",
        "transfer_compute_us_per_mb", "compute_slots_per_node"}) {
    SCOPED_TRACE(key);
    for (const char* value : {"-1", "\"1\"", "null", "true", "[1]"}) {
      EXPECT_THAT(refusal(fmt::format("\"{}\": {}", key, value)),
                  AllOf(HasSubstr("c.json: "), HasSubstr(key), HasSubstr("expected")))
          << value;
    }
    EXPECT_THAT(refusal(fmt::format("\"{}\": NaN", key)), HasSubstr("c.json: "));
    EXPECT_THAT(refusal(fmt::format("\"{}\": 1e999", key)), HasSubstr("c.json: "));
  }
  EXPECT_THAT(refusal(R"("memory_gbytes_per_s": 0)"), HasSubstr("expected 1e-09 to 1000000000000"));
  EXPECT_THAT(refusal(R"("sm_fraction": 1)"), HasSubstr("below 1, found 1"));
  EXPECT_THAT(refusal(R"("compute_slots_per_node": 1e-9)"), HasSubstr("expected 0"));
  EXPECT_EQ(refusal(R"("intra_latency_us": 0, "launch_us": 0, "sm_fraction": 0)"), "no error");
}

TEST(CostModelKeys, RefuseWrongCountsAndWords) {
  EXPECT_THAT(refusal(R"("sms": -1)"), HasSubstr("sms: expected 0 (unknown) or more, found -1"));
  EXPECT_THAT(
      refusal(R"("transfer_sms": 132)"),
      HasSubstr("expected 0 or fewer than the 132 multiprocessors of a device (sms), found 132"));
  EXPECT_THAT(refusal(R"("transfer_sms": 6.5)"), HasSubstr("transfer_sms: expected an integer"));
  EXPECT_THAT(refusal(R"("nics_per_node": 0)"), HasSubstr("nics_per_node: expected 1 to 4"));
  EXPECT_THAT(refusal(R"("nics_per_node": 5)"), HasSubstr("found 5"));
  EXPECT_THAT(refusal(R"("nics_per_node": 1.5)"), HasSubstr("nics_per_node: expected an integer"));
  EXPECT_THAT(refusal(R"("rails": 1)"), HasSubstr("rails: expected true or false, found '1'"));
  EXPECT_THAT(refusal(R"("launches": "serial")"),
              HasSubstr("launches: expected \"concurrent\" or \"grouped\", found 'serial'"));
  EXPECT_THAT(refusal(R"("launches": 1)"), HasSubstr("launches: expected text"));
  EXPECT_THAT(refusal(R"("rail": true)"),
              AllOf(HasSubstr("found 'rail'"), HasSubstr("did you mean 'rails'?")));
}

TEST(CostModelKeys, RefuseWrongProfiles) {
  EXPECT_THAT(refusal(R"("attention": 7)"), HasSubstr("attention: expected an object"));
  EXPECT_THAT(refusal(R"("attention": {"call": 1})"),
              AllOf(HasSubstr("attention: expected the keys q_rows"), HasSubstr("found 'call'")));
  EXPECT_THAT(refusal(R"("attention": {"forward": "0.5"})"), HasSubstr("attention: forward"));
  EXPECT_THAT(refusal(R"("attention": {"call_us": -1})"),
              HasSubstr("call_us: expected 0 to 1000000000"));
  EXPECT_THAT(refusal(R"("attention": {"kernel_tile_rows": 1000000})"),
              HasSubstr("kernel_tile_rows: expected 0 to 65536"));
  EXPECT_THAT(refusal(R"("attention": {"kernel_tile_rows": -1})"), HasSubstr("kernel_tile_rows"));
  // A grid comes whole: rows alone do not fit the preset's shares.
  EXPECT_THAT(refusal(R"("attention": {"q_rows": [16, 32]})"), HasSubstr("forward: expected"));
  const auto grid = [](const std::string& shares) {
    return refusal(fmt::format(R"("attention": {{"q_rows": [16], "kv_rows": [16, 32],
        "forward": {}, "backward": [0.5, 0.5]}})",
                               shares));
  };
  EXPECT_EQ(grid("[0.5, 1]"), "no error");
  EXPECT_THAT(grid("[0.5]"), HasSubstr("forward: expected 2 numbers (q_rows x kv_rows), found 1"));
  EXPECT_THAT(grid("[0.5, 0]"), HasSubstr("shares of the peak of 1e-06 to 2, found 0"));
  EXPECT_THAT(grid("[0.5, -1]"), HasSubstr("found -1"));
  EXPECT_THAT(grid("[0.5, \"a\"]"), HasSubstr("attention: forward[1]: expected a number, found"));
  EXPECT_THAT(refusal(R"("attention": {"q_rows": [32, 16]})"),
              HasSubstr("q_rows: expected ascending numbers of 1 to 2147483648, found 32, 16"));
}

TEST(CostModelKeys, FractionsOfRowsAreRefused) {
  EXPECT_THAT(refusal(R"("attention": {"kernel_tile_rows": 1.5})"),
              HasSubstr("kernel_tile_rows: expected an integer, found '1.5'"));
  EXPECT_THAT(refusal(R"("attention": {"call_us": true})"),
              HasSubstr("call_us: expected a number"));
  EXPECT_THAT(refusal(R"("attention": {"kernel_tile_rows": 18446744073709551615})"),
              HasSubstr("kernel_tile_rows: expected an integer"));
  EXPECT_THAT(refusal(R"("attention": {"q_rows": [1.5], "kv_rows": [1], "forward": [1],
                         "backward": [1]})"),
              HasSubstr("attention: q_rows[0]: expected an integer, found '1.5'"));
}

TEST(ClusterGroup, SharesSlotsWithTheOthersOfTheNode) {
  Cluster cluster = load_cluster("local:1x8");
  cluster.compute_slots_per_node = 4;
  EXPECT_EQ(cluster.group(2, 1).compute_slots_per_node, 2);
  EXPECT_EQ(cluster.group(2, 2).compute_slots_per_node, 1);
  EXPECT_EQ(cluster.group(8, 1).compute_slots_per_node, 0.5);
  cluster.compute_slots_per_node = 0;
  EXPECT_EQ(cluster.group(2, 1).compute_slots_per_node, 0);
}

TEST(Cluster, ComputeSlotsAreAtMostItsDevices) {
  Cluster cluster = load_cluster("local:3x4");
  EXPECT_EQ(cluster.compute_slots(), 12);
  cluster.compute_slots_per_node = 1.5;
  EXPECT_EQ(cluster.compute_slots(), 4.5);
  cluster.compute_slots_per_node = 100;
  EXPECT_EQ(cluster.compute_slots(), 12);
}

}  // namespace
}  // namespace contextile
