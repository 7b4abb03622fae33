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

// FlashAttention-4 class, forward, on a Blackwell of compute capability 10. The cost of a row is
// fitted to measurements of its own benchmark (flash-attention pull request 2605, head dim 128,
// 32768 tokens of documents of 1024 to 4096, causal and not). A kernel tile is 256 rows. Backward
// is that of fa3_class: nothing is known of it.
AttentionProfile fa4_class() { return AttentionProfile::from_overheads(380, 9600, 0.86, 256); }

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
       .launches = LaunchOrder::kGrouped,
       .sms = 108}};
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
       .launches = LaunchOrder::kGrouped,
       .sms = 132}};
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
       .launches = LaunchOrder::kGrouped,
       .sms = 132}};
}

ClusterPreset h20() {
  return {
      "h20",
      "8 x H20 96GB per node, 78 SMs; NVSwitch 450 GB/s per direction per GPU; 8 x 200 Gb/s "
      "InfiniBand = 200 GB/s per node, which with its peak has the FLOPs per byte of FCP's GPU-X; "
      "attention 140 TFLOP/s on large full tiles, rows as FlashAttention-3 on H100 (126 full and "
      "108 causal at 2K, flash-attention issue 1310); bf16 peak 148 TFLOP/s (data sheet)",
      {.name = "h20",
       .nodes = 1,
       .devices_per_node = 8,
       .intra_gbytes_per_s = 450,
       .inter_gbytes_per_s_per_node = 200,
       .attention_tflops = 140,
       .memory_bytes = 96'000'000'000,
       .peak_tflops = 148,
       .attention = fa3_class(),
       .memory_gbytes_per_s = 4000,
       .nics_per_node = 8,
       .launches = LaunchOrder::kGrouped,
       .sms = 78}};
}

ClusterPreset gb200_nvl72() {
  return {
      "gb200-nvl72",
      "72 x B200 186GB in one NVLink domain, 148 SMs; 900 GB/s per direction per GPU (NVLink 5: 18 "
      "links x 50 GB/s); 72 x 400 Gb/s InfiniBand = 3600 GB/s per domain; attention 1663 TFLOP/s "
      "on large full tiles, which gives 1613 causal at 32K, and rows as FlashAttention-4 measured "
      "them; bf16 peak 2250 TFLOP/s (the peak of which these 1613 are 71%)",
      {.name = "gb200-nvl72",
       .nodes = 1,
       .devices_per_node = 72,
       .intra_gbytes_per_s = 900,
       .inter_gbytes_per_s_per_node = 3600,
       .attention_tflops = 1663,
       .memory_bytes = 186'000'000'000,
       .peak_tflops = 2250,
       .attention = fa4_class(),
       .memory_gbytes_per_s = 8000,
       .nics_per_node = 72,
       .launches = LaunchOrder::kGrouped,
       .sms = 148}};
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
  static const std::vector<ClusterPreset> kPresets = {p4de(), dgx_h100(),    dgx_h200(),
                                                      h20(),  gb200_nvl72(), local()};
  return kPresets;
}

}  // namespace contextile
