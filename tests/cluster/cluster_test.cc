#include "contextile/cluster.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/message_of.h"

namespace contextile {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kCustom = R"({"name": "lab", "nodes": 3, "devices_per_node": 4,
  "intra_gbytes_per_s": 200.5, "inter_gbytes_per_s_per_node": 25, "attention_tflops": 100,
  "memory_bytes": 24000000000})";

// Message of the InvalidArgument that `call` throws.
std::string load_message(std::string_view text) {
  return message_of([&] { static_cast<void>(load_cluster(text)); });
}

std::string json_message(std::string_view text) {
  return message_of([&] { static_cast<void>(parse_cluster_json(text, "c.json")); });
}

void expect_equal(const Cluster& a, const Cluster& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.nodes, b.nodes);
  EXPECT_EQ(a.devices_per_node, b.devices_per_node);
  EXPECT_EQ(a.intra_gbytes_per_s, b.intra_gbytes_per_s);
  EXPECT_EQ(a.inter_gbytes_per_s_per_node, b.inter_gbytes_per_s_per_node);
  EXPECT_EQ(a.attention_tflops, b.attention_tflops);
  EXPECT_EQ(a.memory_bytes, b.memory_bytes);
  EXPECT_EQ(a.peak_tflops, b.peak_tflops);
}

TEST(ClusterPresets, AreValidLoadableAndDescribed) {
  ASSERT_EQ(cluster_presets().size(), 8U);
  for (const ClusterPreset& preset : cluster_presets()) {
    SCOPED_TRACE(preset.name);
    EXPECT_NO_THROW(check_cluster(preset.cluster));
    EXPECT_EQ(preset.cluster.name, preset.name);
    EXPECT_FALSE(preset.description.empty());
    expect_equal(load_cluster(preset.name), preset.cluster);
  }
}

TEST(ClusterPresets, HoldMeasuredRates) {
  const Cluster p4de = load_cluster("p4de");
  EXPECT_EQ(p4de.intra_gbytes_per_s, 205);
  EXPECT_EQ(p4de.inter_gbytes_per_s_per_node, 42);
  EXPECT_EQ(p4de.flow_limit_gbytes_per_s(), 4);
  EXPECT_EQ(p4de.attention_tflops, 217);
  EXPECT_EQ(p4de.attention, find_gpu_kernel("p4de", "fa2").attention);
  const Cluster h200 = load_cluster("dgx-h200");
  EXPECT_EQ(h200.intra_gbytes_per_s, 335);
  EXPECT_EQ(h200.inter_gbytes_per_s_per_node, 344);
  EXPECT_EQ(h200.memory_bytes, 141'000'000'000);
  EXPECT_EQ(h200.peak_tflops, 989);
  EXPECT_EQ(load_cluster("dgx-h100").memory_bytes, 80'000'000'000);
  EXPECT_EQ(load_cluster("local").num_devices(), 4);
  EXPECT_EQ(load_cluster("local").launches, LaunchOrder::kConcurrent);
  for (const char* gpus :
       {"p4de", "dgx-h100", "dgx-h200", "h20", "b200", "gb200-nvl72", "gb300-nvl72"}) {
    EXPECT_EQ(load_cluster(gpus).launches, LaunchOrder::kGrouped) << gpus;
  }
  EXPECT_EQ(load_cluster("b200:8x8").flow_limit_gbytes_per_s(), 26);
}

// Every constant of the cost model that a preset sets has a source.
TEST(ClusterPresets, NameTheSourceOfEveryConstant) {
  for (const ClusterPreset& preset : cluster_presets()) {
    SCOPED_TRACE(preset.name);
    ASSERT_GE(preset.sources.size(), 2U);  // constant_sources leaves them out for other kernels
    EXPECT_EQ(preset.sources[0].key, "attention_tflops");
    EXPECT_EQ(preset.sources[1].key, "attention");
    std::set<std::string_view> keys;
    for (const ConstantSource& source : preset.sources) {
      EXPECT_TRUE(keys.insert(source.key).second) << source.key << " twice";
      EXPECT_FALSE(source.source.empty()) << source.key;
    }
    std::vector<std::string_view> expected = {"attention_tflops", "attention", "intra_gbytes_per_s",
                                              "intra_latency_us", "launch_us"};
    if (preset.cluster.devices_per_node > 4) {
      expected.insert(expected.end(),
                      {"inter_gbytes_per_s_per_node", "inter_latency_us", "nics_per_node",
                       "memory_bytes", "memory_gbytes_per_s", "peak_tflops", "sms", "launches"});
    }
    if (!preset.cluster.flow_gbytes_per_s.empty()) expected.emplace_back("flow_gbytes_per_s");
    for (const std::string_view key : expected) EXPECT_TRUE(keys.contains(key)) << key;
  }
}

TEST(ConstantSources, AreThoseOfThePresetInTheName) {
  const auto assumes = [](const Cluster& cluster, std::string_view key) {
    return std::ranges::any_of(constant_sources(cluster), [&](const ConstantSource& source) {
      return source.key == key && source.assumed;
    });
  };
  EXPECT_TRUE(assumes(load_cluster("p4de:4x8,engine=ring"), "launch_us"));
  EXPECT_FALSE(assumes(load_cluster("p4de"), "intra_gbytes_per_s"));
  EXPECT_TRUE(assumes(load_cluster("dgx-h200"), "intra_gbytes_per_s"));
  EXPECT_TRUE(assumes(load_cluster("p4de"), "attention"));
  EXPECT_FALSE(assumes(load_cluster("p4de,kernel=vllm_fa2"), "attention"));
  EXPECT_TRUE(constant_sources(Cluster{}).empty());
  const Cluster changed = parse_cluster_json(R"({"preset": "p4de", "launch_us": 9})", "c.json");
  EXPECT_TRUE(constant_sources(changed).empty());  // no longer the preset
}

// FLOPs of the tensor cores' peak per byte of network, GPU-X of FCP's Table 1. The paper counts all
// of a NIC's rate, of which transfers get 86%.
TEST(ClusterPresets, HaveTheRatioOfFcpsMachine) {
  const Cluster h20 = load_cluster("h20");
  const double nic_gbytes_per_s = h20.inter_gbytes_per_s_per_node / h20.devices_per_node / 0.86;
  EXPECT_DOUBLE_EQ(1e3 * h20.peak_tflops / nic_gbytes_per_s, 5920);
  EXPECT_EQ(load_cluster("gb200-nvl72").num_devices(), 72);
}

TEST(LoadCluster, TakesAnEngineAfterTheComma) {
  const Cluster cluster = load_cluster("h20:4x8,transfer_sms=6,engine=ring");
  EXPECT_EQ(cluster.transfer_sms, 6);
  EXPECT_EQ(cluster.engine, find_engine("ring"));
  EXPECT_EQ(cluster.name, "h20,transfer_sms=6,engine=ring");
  EXPECT_EQ(load_cluster("h20").engine, find_engine("native"));
  EXPECT_THAT(load_message("h20,engine=rings"), HasSubstr("engine: expected one of native"));
  EXPECT_THAT(load_message("h20,engine=ring,engine=ring"), HasSubstr("found 'engine' twice"));
}

TEST(LoadCluster, TakesAMeasuredKernelAfterTheComma) {
  const Cluster preset = load_cluster("dgx-h100");
  const Cluster cluster = load_cluster("dgx-h100:2x8,kernel=fa2,engine=ring");
  const GpuKernel& kernel = find_gpu_kernel("dgx-h100", "fa2");
  EXPECT_EQ(cluster.attention_tflops, kernel.attention_tflops);
  EXPECT_EQ(cluster.attention, kernel.attention);
  EXPECT_NE(cluster.attention, preset.attention);
  EXPECT_EQ(cluster.engine, find_engine("ring"));
  EXPECT_EQ(cluster.name, "dgx-h100,kernel=fa2,engine=ring");
  EXPECT_EQ(load_cluster("dgx-h200,kernel=fa2").attention, kernel.attention);  // the same chip
  EXPECT_NE(load_cluster("gb200-nvl72,kernel=trtllm").attention,
            load_cluster("dgx-h100,kernel=trtllm").attention);
  EXPECT_THAT(load_message("dgx-h100,kernel=fa9"),
              HasSubstr("kernel: expected one of fa2, fa3, fa3_node, cudnn"));
  EXPECT_THAT(load_message("p4de,kernel=fa3"), HasSubstr("expected one of fa2, vllm_fa2 on p4de"));
  EXPECT_THAT(load_message("local,kernel=fa3"), HasSubstr("a preset with measured kernels"));
  EXPECT_THAT(load_message("dgx-h100,kernel=fa2,kernel=fa3"), HasSubstr("twice"));
  for (const GpuKernel& each : gpu_kernels()) {
    for (const std::string_view name : each.presets) {
      check_cluster(load_cluster(fmt::format("{},kernel={}", name, each.name)));
    }
  }
}

TEST(UseGpuKernel, ChangesConstantsAndNoName) {
  Cluster cluster = load_cluster("dgx-h100:2x8");
  use_gpu_kernel("dgx-h100:2x8,engine=ring", "fa2", cluster);
  Cluster expected = load_cluster("dgx-h100:2x8,kernel=fa2");
  expected.name = "dgx-h100";
  EXPECT_EQ(to_json(cluster), to_json(expected));
  EXPECT_THROW(use_gpu_kernel("dgx-h100", "fa9", cluster), InvalidArgument);
}

TEST(WithoutSettings, IsThePartBeforeTheComma) {
  EXPECT_EQ(without_settings("dgx-h200,kernel=fa2,engine=ring"), "dgx-h200");
  EXPECT_EQ(without_settings("dgx-h200:2x8,transfer_sms=6"), "dgx-h200:2x8");
  EXPECT_EQ(without_settings("custom"), "custom");
  EXPECT_EQ(without_settings(""), "");
}

TEST(LoadCluster, TakesMultiprocessorsForTransfersAfterTheComma) {
  const Cluster cluster = load_cluster("h20:4x8,transfer_sms=6");
  EXPECT_EQ(cluster.num_devices(), 32);
  EXPECT_EQ(cluster.transfer_sms, 6);
  EXPECT_EQ(cluster.name, "h20,transfer_sms=6");
  EXPECT_DOUBLE_EQ(cluster.usable_attention_tflops(), cluster.attention_tflops * 72 / 78);
  EXPECT_EQ(load_cluster("h20,transfer_sms=0").usable_attention_tflops(), cluster.attention_tflops);
  for (const char* text : {"h20,", "h20,6", "h20:1x8,sms=6", "h20,transfer_sms=",
                           "h20,transfer_sms=6x", "h20,transfer_sms=6,transfer_sms=6"}) {
    EXPECT_THAT(load_message(text), HasSubstr("expected transfer_sms=N")) << text;
  }
  EXPECT_THAT(load_message("h20,transfer_sms=78"),
              HasSubstr("transfer_sms: expected 0 or fewer than the 78 multiprocessors"));
  EXPECT_THAT(load_message("h20,transfer_sms=-1"), HasSubstr("transfer_sms: expected 0 or fewer"));
  EXPECT_THAT(load_message("local,transfer_sms=1"), HasSubstr("fewer than the 0 multiprocessors"));
}

TEST(LoadCluster, TakesASizeAfterTheColon) {
  const Cluster cluster = load_cluster("p4de:4x8");
  EXPECT_EQ(cluster.nodes, 4);
  EXPECT_EQ(cluster.devices_per_node, 8);
  EXPECT_EQ(cluster.num_devices(), 32);
  EXPECT_EQ(cluster.node_of(Rank(15)), 1);
  EXPECT_TRUE(cluster.same_node(Rank(8), Rank(15)));
  EXPECT_FALSE(cluster.same_node(Rank(7), Rank(8)));
  EXPECT_EQ(load_cluster("local:1x1").num_devices(), 1);
  EXPECT_EQ(load_cluster("dgx-h200:8192x8").num_devices(), 65536);
}

TEST(LoadCluster, RefusesBadSizesAndSaysWhatItFound) {
  for (const char* text :
       {"p4de:", "p4de:4", "p4de:x", "p4de:4x", "p4de:x8", "p4de:4x8x2", "p4de:4x8 ", "p4de: 4x8",
        "p4de:4X8", "p4de:+4x8", "p4de:99999999999x1"}) {
    SCOPED_TRACE(text);
    EXPECT_THAT(load_message(text), HasSubstr("NODESxDEVICES"));
  }
  EXPECT_THAT(load_message("p4de:0x8"), HasSubstr("nodes: expected 1 to 65536, found 0"));
  EXPECT_THAT(load_message("p4de:4x-8"), HasSubstr("devices_per_node"));
  EXPECT_THAT(load_message("p4de:65536x2"), HasSubstr("at most 65536 devices"));
}

TEST(LoadCluster, ListsPresetsAndSuggestsTheNearest) {
  EXPECT_THAT(
      load_message("p4d:4x8"),
      AllOf(HasSubstr("p4de, dgx-h100, dgx-h200, h20, b200, gb200-nvl72, gb300-nvl72, local"),
            HasSubstr("did you mean 'p4de'")));
  EXPECT_THAT(load_message("dgx-h20"), HasSubstr("did you mean 'dgx-h200'"));
  EXPECT_THAT(load_message("something else"), Not(HasSubstr("did you mean")));
  EXPECT_THAT(load_message(""), HasSubstr("found ''"));
}

TEST(LoadCluster, ReadsAFileAndNamesItInErrors) {
  const std::string path =
      testing::TempDir() + "contextile_cluster_" + std::to_string(::getpid()) + ".json";
  std::ofstream(path) << kCustom;
  expect_equal(load_cluster(path), parse_cluster_json(kCustom, ""));
  std::ofstream(path) << "{\"nodes\": 0}";
  EXPECT_THAT(load_message(path), HasSubstr(path));
  ::unlink(path.c_str());
  EXPECT_THROW(static_cast<void>(load_cluster("missing.json")), IoError);
  EXPECT_THROW(static_cast<void>(load_cluster("/no/such/place")), IoError);
}

TEST(ParseClusterJson, ReadsEveryKey) {
  const Cluster cluster = parse_cluster_json(kCustom, "c.json");
  EXPECT_EQ(cluster.name, "lab");
  EXPECT_EQ(cluster.nodes, 3);
  EXPECT_EQ(cluster.devices_per_node, 4);
  EXPECT_EQ(cluster.intra_gbytes_per_s, 200.5);
  EXPECT_EQ(cluster.inter_gbytes_per_s_per_node, 25);
  EXPECT_EQ(cluster.attention_tflops, 100);
  EXPECT_EQ(cluster.memory_bytes, 24'000'000'000);
}

TEST(ParseClusterJson, StartsFromAPreset) {
  const Cluster cluster =
      parse_cluster_json(R"({"preset": "dgx-h200:2x4", "attention_tflops": 350})", "c.json");
  Cluster expected = load_cluster("dgx-h200:2x4");
  expected.attention_tflops = 350;
  expected.name = "custom";  // it is not the preset's machine any more
  expect_equal(cluster, expected);
  EXPECT_THAT(json_message(R"({"preset": "dgx-h300"})"),
              AllOf(HasSubstr("c.json: "), HasSubstr("did you mean 'dgx-h100'")));
}

TEST(ParseClusterJson, RefusesWhatIsNoCluster) {
  const auto with = [](const std::string& item) {
    return json_message(fmt::format("{{\"preset\": \"p4de\", {}}}", item));
  };
  EXPECT_THAT(with("\"node\": 4"), AllOf(HasSubstr("found 'node'"), HasSubstr("memory_bytes"),
                                         HasSubstr("did you mean 'nodes'")));
  EXPECT_THAT(with("\"nodes\": 4.0"), HasSubstr("c.json: nodes: expected an integer"));
  EXPECT_THAT(with("\"nodes\": \"4\""), HasSubstr("nodes: expected an integer"));
  EXPECT_THAT(with("\"nodes\": 4294967297"), HasSubstr("nodes: expected an integer"));
  EXPECT_THAT(with("\"nodes\": -9223372036854775809"), HasSubstr("nodes: expected an integer"));
  EXPECT_THAT(with("\"nodes\": -1"), HasSubstr("nodes: expected 1 to"));
  EXPECT_THAT(with("\"memory_bytes\": 9223372036854775808"), HasSubstr("memory_bytes"));
  EXPECT_THAT(with("\"memory_bytes\": -1"), HasSubstr("memory_bytes"));
  EXPECT_THAT(with("\"attention_tflops\": null"), HasSubstr("attention_tflops"));
  EXPECT_THAT(with("\"attention_tflops\": 0"), HasSubstr("expected 1e-09 to 1000000000000"));
  EXPECT_THAT(with("\"intra_gbytes_per_s\": -0.0"), HasSubstr("expected 1e-09 to 1000000000000"));
  EXPECT_THAT(with("\"intra_gbytes_per_s\": 1e999"), HasSubstr("c.json: "));
  EXPECT_THAT(with("\"intra_gbytes_per_s\": NaN"), HasSubstr("c.json: "));
  EXPECT_THAT(with("\"name\": 7"), HasSubstr("name: expected text"));
  EXPECT_THAT(with("\"nodes\": 1, \"nodes\": 2"), HasSubstr("twice"));
  EXPECT_THAT(json_message("[]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(json_message("{}"), HasSubstr("nodes: expected a value"));
  EXPECT_THAT(json_message("{"), HasSubstr("c.json: "));
  EXPECT_THAT(json_message(std::string(1'000'000, '[')), HasSubstr("levels"));
}

TEST(ParseClusterJson, WantsEveryConstantWithoutAPreset) {
  const std::string all = kCustom;
  for (const char* key : {"nodes", "devices_per_node", "intra_gbytes_per_s",
                          "inter_gbytes_per_s_per_node", "attention_tflops"}) {
    std::string text = all;
    const std::size_t at = text.find(fmt::format("\"{}\"", key));
    text.erase(at, text.find(',', at) + 1 - at);
    EXPECT_THAT(json_message(text), HasSubstr(fmt::format("{}: expected a value", key)));
  }
}

TEST(ToJson, ComesBackTheSame) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> exponent(-20, 20);
  for (int i = 0; i < 500; ++i) {
    Cluster cluster;
    cluster.name = fmt::format("näme \"{}\"\n", i);
    cluster.nodes = static_cast<std::int32_t>(1 + random() % 256);
    cluster.devices_per_node = static_cast<std::int32_t>(1 + random() % 256);
    cluster.intra_gbytes_per_s = std::exp(exponent(random));
    cluster.inter_gbytes_per_s_per_node = std::exp(exponent(random));
    cluster.attention_tflops = std::exp(exponent(random));
    cluster.memory_bytes = static_cast<std::int64_t>(random() >> 1);
    cluster.peak_tflops = std::exp(exponent(random));
    SCOPED_TRACE(to_json(cluster));
    expect_equal(parse_cluster_json(to_json(cluster), "c.json"), cluster);
  }
}

TEST(ToJson, SurvivesANameThatIsNoUtf8) {
  Cluster cluster;
  cluster.name = "\xff";
  EXPECT_NO_THROW(static_cast<void>(parse_cluster_json(to_json(cluster), "c.json")));
}

TEST(CheckCluster, RefusesNonsense) {
  const auto broken = [](auto change) {
    Cluster cluster;
    change(cluster);
    return message_of([&] { check_cluster(cluster); });
  };
  EXPECT_EQ(broken([](Cluster&) {}), "no error");
  EXPECT_NE(broken([](Cluster& c) { c.nodes = 0; }), "no error");
  EXPECT_NE(broken([](Cluster& c) { c.devices_per_node = -1; }), "no error");
  EXPECT_NE(broken([](Cluster& c) { c.nodes = c.devices_per_node = 1 << 16; }), "no error");
  EXPECT_NE(broken([](Cluster& c) { c.intra_gbytes_per_s = std::nan(""); }), "no error");
  EXPECT_NE(
      broken([](Cluster& c) { c.attention_tflops = std::numeric_limits<double>::infinity(); }),
      "no error");
  EXPECT_NE(broken([](Cluster& c) { c.inter_gbytes_per_s_per_node = 0; }), "no error");
  EXPECT_NE(broken([](Cluster& c) { c.memory_bytes = -1; }), "no error");
  EXPECT_NE(broken([](Cluster& c) { c.peak_tflops = -1; }), "no error");
}

TEST(ClusterGroup, OfOneByOneIsTheClusterItself) {
  const Cluster cluster = load_cluster("p4de:4x8");
  expect_equal(cluster.group(1, 1), cluster);
}

TEST(ClusterGroup, TensorParallelPeersShareTheNodesUplink) {
  const Cluster group = load_cluster("p4de:8x8").group(4, 1);
  EXPECT_EQ(group.nodes, 8);
  EXPECT_EQ(group.devices_per_node, 2);
  EXPECT_EQ(group.inter_gbytes_per_s_per_node, 42.0 / 4);
  EXPECT_EQ(group.intra_gbytes_per_s, 205);
  EXPECT_EQ(group.memory_bytes, 80'000'000'000);
}

TEST(ClusterGroup, PipelineStagesTakeWholeNodesOrEqualPartsOfOne) {
  const Cluster nodes = load_cluster("dgx-h200:8x8").group(8, 4);
  EXPECT_EQ(nodes.nodes, 2);
  EXPECT_EQ(nodes.devices_per_node, 1);
  EXPECT_EQ(nodes.inter_gbytes_per_s_per_node, 344.0 / 8);
  const Cluster part = load_cluster("dgx-h200:2x8").group(2, 4);
  EXPECT_EQ(part.nodes, 1);
  EXPECT_EQ(part.devices_per_node, 2);
}

TEST(ClusterGroup, HasTheRanksThatAreLeft) {
  for (std::int32_t nodes = 1; nodes <= 6; ++nodes) {
    for (std::int32_t devices = 1; devices <= 8; ++devices) {
      Cluster cluster;
      cluster.nodes = nodes;
      cluster.devices_per_node = devices;
      for (std::int32_t tp = 1; tp <= devices; ++tp) {
        for (std::int32_t pp = 1; pp <= nodes * devices; ++pp) {
          SCOPED_TRACE(testing::Message() << nodes << "x" << devices << " " << tp << " " << pp);
          if (devices % tp != 0 || (nodes * devices / tp) % pp != 0) {
            EXPECT_THROW(static_cast<void>(cluster.group(tp, pp)), InvalidArgument);
            continue;
          }
          const std::int32_t ranks = nodes * devices / tp / pp;
          const std::int32_t per_node = devices / tp;
          if (ranks % per_node != 0 && per_node % ranks != 0) {
            EXPECT_THROW(static_cast<void>(cluster.group(tp, pp)), InvalidArgument);
            continue;
          }
          const Cluster group = cluster.group(tp, pp);
          EXPECT_EQ(group.num_devices(), ranks);
          EXPECT_EQ(group.devices_per_node, std::min(ranks, per_node));
        }
      }
    }
  }
}

TEST(ClusterGroup, RefusesWhatDoesNotDivide) {
  const Cluster cluster = load_cluster("p4de:3x8");
  const auto message = [&](std::int32_t tp, std::int32_t pp) {
    return message_of([&] { static_cast<void>(cluster.group(tp, pp)); });
  };
  EXPECT_THAT(message(3, 1), HasSubstr("divides 8 devices per node, found 3"));
  EXPECT_THAT(message(0, 1), HasSubstr("tp"));
  EXPECT_THAT(message(16, 1), HasSubstr("tp"));
  EXPECT_THAT(message(1, 5), HasSubstr("divides the 24 ranks left by tp 1, found 5"));
  EXPECT_THAT(message(1, -1), HasSubstr("pp"));
  EXPECT_THAT(message(1, 2), HasSubstr("whole nodes"));
}

TEST(ConsecutiveRanks, AreANodesPartWholeNodesOrEqualParts) {
  const Cluster cluster = load_cluster("p4de:4x8");
  const auto shape = [&](std::int32_t first, std::int32_t count) {
    const Cluster part = cluster.consecutive(Rank{first}, count);
    EXPECT_NO_THROW(check_cluster(part));
    EXPECT_DOUBLE_EQ(part.inter_gbytes_per_s_per_node,
                     cluster.inter_gbytes_per_s_per_node * part.devices_per_node / 8);
    return std::pair(part.nodes, part.devices_per_node);
  };
  EXPECT_EQ(shape(0, 4), std::pair(1, 4));
  EXPECT_EQ(shape(13, 3), std::pair(1, 3));
  EXPECT_EQ(shape(8, 8), std::pair(1, 8));
  EXPECT_EQ(shape(0, 32), std::pair(4, 8));
  EXPECT_EQ(shape(8, 16), std::pair(2, 8));
  EXPECT_EQ(shape(6, 4), std::pair(2, 2));
  EXPECT_EQ(shape(3, 10), std::pair(2, 5));
  EXPECT_EQ(shape(4, 16), std::pair(4, 4));
  EXPECT_EQ(shape(7, 4), std::pair(4, 1));
  EXPECT_EQ(shape(6, 12), std::pair(6, 2));
}

TEST(ConsecutiveRanks, AreRefusedOutsideTheCluster) {
  const Cluster cluster = load_cluster("p4de:2x8");
  for (const auto& run : {std::pair(10, 7), {-1, 2}, {0, 0}, {16, 1}}) {
    const std::string message =
        message_of([&] { static_cast<void>(cluster.consecutive(Rank{run.first}, run.second)); });
    EXPECT_THAT(message, HasSubstr("expected ranks below 16"));
  }
}

}  // namespace
}  // namespace contextile
