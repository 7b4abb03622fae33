#include "contextile/cluster.h"

namespace contextile {

const std::vector<ClusterPreset>& cluster_presets() {
  // Constants and their sources stand in the descriptions, so that a table of presets shows them.
  static const std::vector<ClusterPreset> presets = {
      {"p4de",
       "8 x A100 80GB per node; NVSwitch 300 GB/s per direction per GPU (NVLink 3: 12 links x 25 "
       "GB/s); "
       "4 x 100 Gb/s EFA = 50 GB/s per node (AWS p4de.24xlarge); attention 280 TFLOP/s (the DCP "
       "paper's assumption)",
       {.name = "p4de",
        .nodes = 1,
        .devices_per_node = 8,
        .intra_gbytes_per_s = 300,
        .inter_gbytes_per_s_per_node = 50,
        .attention_tflops = 280,
        .memory_bytes = 80'000'000'000}},
      {"dgx-h100",
       "8 x H100 80GB per node; NVSwitch 450 GB/s per direction per GPU (NVLink 4: 18 links x 25 "
       "GB/s); "
       "8 x 400 Gb/s InfiniBand = 400 GB/s per node (NVIDIA DGX H100); attention 680 TFLOP/s "
       "(FA3-class causal forward at 32K, charts of MagiAttention's benchmark)",
       {.name = "dgx-h100",
        .nodes = 1,
        .devices_per_node = 8,
        .intra_gbytes_per_s = 450,
        .inter_gbytes_per_s_per_node = 400,
        .attention_tflops = 680,
        .memory_bytes = 80'000'000'000}},
      {"dgx-h200",
       "8 x H200 141GB per node; links and attention throughput as dgx-h100, whose chip it shares "
       "(NVIDIA DGX H200)",
       {.name = "dgx-h200",
        .nodes = 1,
        .devices_per_node = 8,
        .intra_gbytes_per_s = 450,
        .inter_gbytes_per_s_per_node = 400,
        .attention_tflops = 680,
        .memory_bytes = 141'000'000'000}},
      {"local",
       "this machine, 4 ranks as threads; uncalibrated: 10 GB/s of memory copies and 0.1 TFLOP/s "
       "per "
       "rank are round guesses for a few CPU cores, memory unknown",
       {.name = "local",
        .nodes = 1,
        .devices_per_node = 4,
        .intra_gbytes_per_s = 10,
        .inter_gbytes_per_s_per_node = 10,
        .attention_tflops = 0.1,
        .memory_bytes = 0}},
  };
  return presets;
}

}  // namespace contextile
