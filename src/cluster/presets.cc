#include "contextile/cluster.h"

namespace contextile {

namespace {

// FlashAttention-2 class, forward, causal, 64 query heads of 128 on an H100. The measurements
// published with DistCA give 0.90 us + 10.7 ns·L + 46.7 ps·L² per document, and 351 TFLOP/s for
// endless ones. A row costs 115 keys more than it attends; half a kernel tile of them lies across
// the diagonal. A document costs 9600 pairs more. A call takes 20 us at least.
AttentionProfile fa2_class() { return AttentionProfile::from_overheads(115 - 64, 9600, 0.86); }

// FlashAttention-3 class on H100. The cost of a row is fitted to the twelve points of
// FlashAttention-3's own charts (head dim 128, 16384 tokens of documents of 512 to 16384, causal
// and not), whose calls are full. A call of one short document is slower still; `call_us` covers
// that. Backward has 586 TFLOP/s compared with 680 forward, causal, at 32K (charts of
// MagiAttention's benchmark). tests/predict/simulate/calibration_test.cc has the points and how far
// off the fit is.
AttentionProfile fa3_class() { return AttentionProfile::from_overheads(218, 9600, 0.86); }

AttentionProfile uncalibrated() { return AttentionProfile::from_overheads(16, 1000, 0.8, 64); }

// The descriptions contain the constants and their sources, so that a table of presets shows them.
// Presets of GPUs launch one group of transfers after another: their transport is NCCL, which runs
// a stream's groups in order.

ClusterPreset p4de() {
  return {
      "p4de",
      "8 x A100 80GB per node; NVSwitch 300 GB/s per direction per GPU (NVLink 3: 12 links x 25 "
      "GB/s); "
      "4 x 100 Gb/s EFA = 50 GB/s per node (AWS p4de.24xlarge); attention 280 TFLOP/s (the DCP "
      "paper's assumption); bf16 peak 312 TFLOP/s (data sheet)",
      {.name = "p4de",
       .nodes = 1,
       .devices_per_node = 8,
       .intra_gbytes_per_s = 300,
       .inter_gbytes_per_s_per_node = 50,
       .attention_tflops = 280,
       .memory_bytes = 80'000'000'000,
       .peak_tflops = 312,
       .attention = fa2_class(),
       .memory_gbytes_per_s = 2000,
       // One uplink: if every two devices had a NIC of their own, rings would be four times slower
       // between nodes than the DCP paper measured.
       .nics_per_node = 1,
       .launches = LaunchOrder::kGrouped}};
}

ClusterPreset dgx_h100() {
  return {
      "dgx-h100",
      "8 x H100 80GB per node; NVSwitch 450 GB/s per direction per GPU (NVLink 4: 18 links x 25 "
      "GB/s); "
      "8 x 400 Gb/s InfiniBand = 400 GB/s per node (NVIDIA DGX H100); attention 692 TFLOP/s on "
      "large "
      "full tiles, which gives 680 causal at 32K (charts of MagiAttention's benchmark), rows as "
      "FlashAttention-3's charts; "
      "bf16 peak 989 TFLOP/s (data sheet)",
      {.name = "dgx-h100",
       .nodes = 1,
       .devices_per_node = 8,
       .intra_gbytes_per_s = 450,
       .inter_gbytes_per_s_per_node = 400,
       .attention_tflops = 692,
       .memory_bytes = 80'000'000'000,
       .peak_tflops = 989,
       .attention = fa3_class(),
       .memory_gbytes_per_s = 3350,
       .nics_per_node = 8,
       .launches = LaunchOrder::kGrouped}};
}

ClusterPreset dgx_h200() {
  return {
      "dgx-h200",
      "8 x H200 141GB per node; links and attention throughput as dgx-h100, whose chip it shares "
      "(NVIDIA DGX H200)",
      {.name = "dgx-h200",
       .nodes = 1,
       .devices_per_node = 8,
       .intra_gbytes_per_s = 450,
       .inter_gbytes_per_s_per_node = 400,
       .attention_tflops = 692,
       .memory_bytes = 141'000'000'000,
       .peak_tflops = 989,
       .attention = fa3_class(),
       .memory_gbytes_per_s = 4800,
       .nics_per_node = 8,
       .launches = LaunchOrder::kGrouped}};
}

ClusterPreset local() {
  return {
      "local",
      "this machine, 4 ranks as threads; uncalibrated: 10 GB/s of memory copies and 0.1 TFLOP/s "
      "per "
      "rank are round guesses for a few CPU cores, memory unknown",
      {.name = "local",
       .nodes = 1,
       .devices_per_node = 4,
       .intra_gbytes_per_s = 10,
       .inter_gbytes_per_s_per_node = 10,
       .attention_tflops = 0.1,
       .memory_bytes = 0,
       .attention = uncalibrated(),
       .memory_gbytes_per_s = 10,
       .intra_latency_us = 20,
       .inter_latency_us = 20,
       .launch_us = 5}};
}

}  // namespace

const std::vector<ClusterPreset>& cluster_presets() {
  static const std::vector<ClusterPreset> presets = {p4de(), dgx_h100(), dgx_h200(), local()};
  return presets;
}

}  // namespace contextile
