#include <algorithm>
#include <utility>

#include "contextile/cluster.h"

namespace contextile {

namespace {

constexpr std::string_view kDataSheet = "data sheet, read on 2026-11-28";
constexpr std::string_view kGuess = "round guess for a few CPU cores";
constexpr std::string_view kNcclTables =
    "all-gather of 512 MiB on 8 GPUs, aiconfigurator's tables of NCCL, 2026-11-28";
constexpr std::string_view kNcclFits =
    "fitted to tables of aiconfigurator, docs/results/measured.md, 2026-11-29";
constexpr std::string_view kNdrFlow =
    "43 GB/s for each of 8 NDR NICs, NCCL SendRecv report on B200, 2026-04-10";

// Adds what all presets of GPUs have: constants of data sheets, and those that are the same on all.
ClusterPreset of_gpus(ClusterPreset preset) {
  std::vector<ConstantSource>& sources = preset.sources;
  for (const std::string_view key :
       {"nics_per_node", "memory_bytes", "memory_gbytes_per_s", "peak_tflops", "sms"}) {
    if (std::ranges::find(sources, key, &ConstantSource::key) == sources.end()) {
      sources.push_back({key, kDataSheet});
    }
  }
  sources.insert(sources.end(), {{"intra_latency_us",
                                  "small NCCL messages take 5 to 11 us on A100, H100 and B200, "
                                  "aiconfigurator's tables, 2026-11-28"},
                                 {"inter_latency_us", "round guess", true},
                                 {"launch_us", "round guess", true},
                                 {"launches", "NCCL runs the groups of a stream in order"}});
  preset.cluster.name = preset.name;
  preset.cluster.launches = LaunchOrder::kGrouped;
  return preset;
}

// Gives a preset the constants of a kernel of its GPU.
ClusterPreset with_kernel(std::string_view kernel, std::string_view source, bool assumed,
                          ClusterPreset preset) {
  use_gpu_kernel(preset.name, kernel, preset.cluster);
  preset.sources.insert(preset.sources.begin(),
                        {{"attention_tflops", source, assumed}, {"attention", source, assumed}});
  return of_gpus(std::move(preset));
}

ClusterPreset p4de() {
  return with_kernel(
      "vllm_fa2",
      "FlashAttention-2, forward from aiconfigurator's tables, 2026-11-28; backward assumed, as on "
      "H100",
      false,
      {"p4de",
       "AWS p4de.24xlarge: 8 x A100 80GB per node, NVLink 3, 4 x 100 Gb/s EFA",
       {{"intra_gbytes_per_s", kNcclTables},
        {"inter_gbytes_per_s_per_node",
         "all-reduce of 2 nodes moves 42 GB/s through each, nccl-tests of AWS, 2026-11-28"},
        {"flow_gbytes_per_s",
         "fitted to DCP's causal bars on 4 nodes, docs/results/measured.md, 2026-11-29; others "
         "alike"},
        {"collectives", kNcclFits}},
       {.nodes = 1,
        .devices_per_node = 8,
        .intra_gbytes_per_s = 205,
        .inter_gbytes_per_s_per_node = 42,
        .memory_bytes = 80'000'000'000,
        .peak_tflops = 312,
        .memory_gbytes_per_s = 2000,
        .nics_per_node = 4,
        .flow_gbytes_per_s = {{.nodes = 4, .gbytes_per_s = 4}},
        .collectives = measured_collectives("p4de"),
        .sms = 108}});
}

ClusterPreset dgx_h100() {
  return with_kernel("fa3_node", "kernel fa3_node, docs/results/measured.md, 2026-11-29", false,
                     {"dgx-h100",
                      "NVIDIA DGX H100: 8 x H100 80GB per node, NVLink 4, 8 x 400 Gb/s InfiniBand",
                      {{"intra_gbytes_per_s", kNcclTables},
                       {"inter_gbytes_per_s_per_node", kNdrFlow},
                       {"collectives", kNcclFits}},
                      {.nodes = 1,
                       .devices_per_node = 8,
                       .intra_gbytes_per_s = 335,
                       .inter_gbytes_per_s_per_node = 344,
                       .memory_bytes = 80'000'000'000,
                       .peak_tflops = 989,
                       .memory_gbytes_per_s = 3350,
                       .nics_per_node = 8,
                       .collectives = measured_collectives("dgx-h100"),
                       .sms = 132}});
}

ClusterPreset dgx_h200() {
  return with_kernel("fa3_node", "as dgx-h100, whose chip it shares", true,
                     {"dgx-h200",
                      "NVIDIA DGX H200: 8 x H200 141GB per node, NVLink 4, 8 x 400 Gb/s InfiniBand",
                      {{"intra_gbytes_per_s", "as dgx-h100", true},
                       {"inter_gbytes_per_s_per_node", "as dgx-h100", true},
                       {"collectives", "as dgx-h100", true}},
                      {.nodes = 1,
                       .devices_per_node = 8,
                       .intra_gbytes_per_s = 335,
                       .inter_gbytes_per_s_per_node = 344,
                       .memory_bytes = 141'000'000'000,
                       .peak_tflops = 989,
                       .memory_gbytes_per_s = 4800,
                       .nics_per_node = 8,
                       .collectives = measured_collectives("dgx-h100"),
                       .sms = 132}});
}

ClusterPreset h20() {
  return of_gpus(
      {"h20",
       "8 x H20 96GB per node, NVLink 4, 8 x 200 Gb/s InfiniBand: the FLOPs per byte of FCP's "
       "GPU-X",
       {{"attention_tflops",
         "large tiles; 126 full and 108 causal at 2K, flash-attention issue 1310, 2026-11-28"},
        {"attention", "as FlashAttention-3 on H100", true},
        {"intra_gbytes_per_s", "as dgx-h100, whose NVLink it has", true},
        {"inter_gbytes_per_s_per_node", "86% of its NICs, as dgx-h100", true},
        {"nics_per_node", "one for each GPU", true},
        {"collectives", "as dgx-h100, whose NVLink it has", true}},
       {.nodes = 1,
        .devices_per_node = 8,
        .intra_gbytes_per_s = 335,
        .inter_gbytes_per_s_per_node = 172,
        .attention_tflops = 140,
        .memory_bytes = 96'000'000'000,
        .peak_tflops = 148,
        .attention = find_gpu_kernel("dgx-h100", "fa3_node").attention,
        .memory_gbytes_per_s = 4000,
        .nics_per_node = 8,
        .collectives = measured_collectives("dgx-h100"),
        .sms = 78}});
}

ClusterPreset b200() {
  return with_kernel(
      "trtllm", "TensorRT-LLM as on gb200-nvl72; backward too", true,
      {"b200",
       "8 x B200 180GB per node, NVLink 5, 8 x 400 Gb/s InfiniBand",
       {{"intra_gbytes_per_s", kNcclTables},
        {"inter_gbytes_per_s_per_node", kNdrFlow},
        {"flow_gbytes_per_s", "NCCL SendRecv report of one cluster of 2 to 32 nodes, 2026-04-10"},
        {"collectives", kNcclFits}},
       {.nodes = 1,
        .devices_per_node = 8,
        .intra_gbytes_per_s = 617,
        .inter_gbytes_per_s_per_node = 344,
        .memory_bytes = 180'000'000'000,
        .peak_tflops = 2250,
        .memory_gbytes_per_s = 8000,
        .nics_per_node = 8,
        .flow_gbytes_per_s = {{2, 43}, {4, 43}, {8, 26}, {16, 14.5}},
        .collectives = measured_collectives("b200"),
        .sms = 148}});
}

ClusterPreset gb200_nvl72() {
  return with_kernel(
      "trtllm", "TensorRT-LLM, forward from aiconfigurator's tables, 2026-11-28; backward assumed",
      false,
      {"gb200-nvl72",
       "NVIDIA GB200 NVL72: 72 x B200 186GB in one NVLink domain, 72 x 400 Gb/s InfiniBand",
       {{"intra_gbytes_per_s", "as 8 B200; 4 GPUs of GB200 were measured, and are equal", true},
        {"inter_gbytes_per_s_per_node", "86% of its NICs, as dgx-h100", true},
        {"collectives",
         "fitted to tables of aiconfigurator of 2 and 4 GPUs, larger groups by a line, "
         "2026-11-29"}},
       {.nodes = 1,
        .devices_per_node = 72,
        .intra_gbytes_per_s = 617,
        .inter_gbytes_per_s_per_node = 3096,
        .memory_bytes = 186'000'000'000,
        .peak_tflops = 2250,
        .memory_gbytes_per_s = 8000,
        .nics_per_node = 72,
        .collectives = measured_collectives("gb200-nvl72"),
        .sms = 148}});
}

ClusterPreset gb300_nvl72() {
  return with_kernel(
      "trtllm", "as gb200-nvl72", true,
      {"gb300-nvl72",
       "NVIDIA GB300 NVL72: 72 x B300 288GB in one NVLink domain, 72 x 800 Gb/s InfiniBand",
       {{"intra_gbytes_per_s", "as 8 B200", true},
        {"inter_gbytes_per_s_per_node", "86% of its NICs, as dgx-h100", true},
        {"sms", "as B200", true},
        {"collectives", "as gb200-nvl72", true}},
       {.nodes = 1,
        .devices_per_node = 72,
        .intra_gbytes_per_s = 617,
        .inter_gbytes_per_s_per_node = 6192,
        .memory_bytes = 288'000'000'000,
        .peak_tflops = 2500,
        .memory_gbytes_per_s = 8000,
        .nics_per_node = 72,
        .collectives = measured_collectives("gb200-nvl72"),
        .sms = 148}});
}

ClusterPreset local() {
  return {"local",
          "this machine, 4 ranks as threads; uncalibrated, memory unknown: contextile profile "
          "measures it",
          {{"attention_tflops", kGuess, true},
           {"attention", kGuess, true},
           {"intra_gbytes_per_s", kGuess, true},
           {"memory_gbytes_per_s", kGuess, true},
           {"intra_latency_us", kGuess, true},
           {"launch_us", kGuess, true}},
          {.name = "local",
           .nodes = 1,
           .devices_per_node = 4,
           .intra_gbytes_per_s = 10,
           .inter_gbytes_per_s_per_node = 10,
           .attention_tflops = 0.1,
           .memory_bytes = 0,
           .attention = AttentionProfile::from_overheads(16, 1000, 0.8, 64),
           .memory_gbytes_per_s = 10,
           .intra_latency_us = 20,
           .inter_latency_us = 20,
           .launch_us = 5}};
}

}  // namespace

const std::vector<ClusterPreset>& cluster_presets() {
  static const std::vector<ClusterPreset> kPresets = {
      p4de(), dgx_h100(), dgx_h200(), h20(), b200(), gb200_nvl72(), gb300_nvl72(), local()};
  return kPresets;
}

std::span<const ConstantSource> constant_sources(const Cluster& cluster) {
  const auto preset =
      std::ranges::find(cluster_presets(), without_settings(cluster.name), &ClusterPreset::name);
  if (preset == cluster_presets().end()) return {};
  return preset->sources;
}

}  // namespace contextile
