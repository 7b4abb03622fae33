#include <algorithm>
#include <cstdint>
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
                                  "round guess; the smallest collectives of NCCL on 2 GPUs take 5 "
                                  "us on H100 and 9 us on A100 and B200",
                                  true},
                                 {"inter_latency_us",
                                  "round guess; the smallest messages between B200 take 22 to 34 "
                                  "us, all-reduces on two p4de 161 us",
                                  true},
                                 {"launch_us", "round guess", true},
                                 {"launches", "NCCL runs the groups of a stream in order"}});
  preset.cluster.name = preset.name;
  preset.cluster.launches = LaunchOrder::kGrouped;
  return preset;
}

// The part of a kernel's constants that was measured on the preset's GPU.
enum class Measured : std::uint8_t { kAll, kRate, kNothing };

// Gives a preset the constants of a kernel of its GPU.
ClusterPreset with_kernel(std::string_view kernel, std::string_view source, Measured measured,
                          ClusterPreset preset) {
  use_gpu_kernel(preset.name, kernel, preset.cluster);
  preset.sources.insert(preset.sources.begin(),
                        {{"attention_tflops", source, measured == Measured::kNothing},
                         {"attention", source, measured != Measured::kAll}});
  return of_gpus(std::move(preset));
}

ClusterPreset p4de() {
  return with_kernel(
      "fa2", "kernel fa2, docs/results/measured.md, 2026-11-30; its rows and backward are assumed",
      Measured::kRate,
      {"p4de",
       "AWS p4de.24xlarge: 8 x A100 80GB per node, NVLink 3, 4 x 100 Gb/s EFA",
       {{"intra_gbytes_per_s", kNcclTables},
        {"inter_gbytes_per_s_per_node",
         "all-reduce of 2 nodes moves 42 GB/s through each, nccl-tests of AWS, 2026-11-28"},
        {"flow_gbytes_per_s",
         "fitted to DCP's causal bars on 4 nodes, docs/results/measured.md, 2026-11-29; others "
         "alike"},
        {"memory_gbytes_per_s", "2039 in the data sheet, rounded"},
        {"collectives",
         "fitted to tables of aiconfigurator, between nodes to nccl-tests of AWS, "
         "docs/results/measured.md, 2026-11-29"}},
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
  return with_kernel(
      "fa3_node", "kernel fa3_node, docs/results/measured.md, 2026-11-29", Measured::kAll,
      {"dgx-h100",
       "NVIDIA DGX H100: 8 x H100 80GB per node, NVLink 4, 8 x 400 Gb/s InfiniBand",
       {{"intra_gbytes_per_s", kNcclTables},
        {"inter_gbytes_per_s_per_node",
         "43 GB/s for each of 8 NICs of 400 Gb/s, DeepEP on two nodes of H800, 2026-11-28"},
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
  return with_kernel("fa3_node", "as dgx-h100, whose chip it shares", Measured::kNothing,
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
         "of large tiles; measured are 126 full and 108 causal at 2K, flash-attention issue 1310",
         true},
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
      "trtllm", "TensorRT-LLM as on gb200-nvl72; backward too", Measured::kNothing,
      {"b200",
       "8 x B200 180GB per node, NVLink 5, 8 x 400 Gb/s InfiniBand",
       {{"intra_gbytes_per_s", kNcclTables},
        {"inter_gbytes_per_s_per_node",
         "43 GB/s for one NIC of 400 Gb/s, NCCL SendRecv report, 2026-04-10; all 8 at once assumed",
         true},
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
      Measured::kRate,
      {"gb200-nvl72",
       "NVIDIA GB200 NVL72: 72 x B200 186GB in one NVLink domain, 72 x 400 Gb/s InfiniBand",
       {{"intra_gbytes_per_s", "as 8 B200; 4 GPUs of GB200 were measured, and are equal", true},
        {"inter_gbytes_per_s_per_node", "86% of its NICs, as dgx-h100", true},
        {"peak_tflops", "data sheet of HGX B200; that of GB200 says 2500"},
        {"collectives",
         "fitted to tables of aiconfigurator of 2 and 4 GPUs, 2026-11-29; larger groups by a line",
         true}},
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
      "trtllm", "as gb200-nvl72", Measured::kNothing,
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
  // The first two are of the preset's kernel.
  const std::span<const ConstantSource> sources = preset->sources;
  return cluster.attention == preset->cluster.attention ? sources : sources.subspan(2);
}

}  // namespace contextile
