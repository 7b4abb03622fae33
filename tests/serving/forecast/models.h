// Models and machines that the tests share.
#pragma once

#include <vector>

#include "contextile/serving/helix.h"

namespace contextile {

// One layer of a dense model, with next to no vocabulary.
inline HelixModel dense_model() {
  return {.shape = {.name = "dense",
                    .layers = 1,
                    .hidden = 16384,
                    .q_heads = 128,
                    .kv_heads = 8,
                    .head_dim = 128,
                    .ffn = 65536,
                    .vocabulary = 1}};
}

inline HelixHardware test_hardware() {
  HelixHardware hardware;
  hardware.memory_gbytes_per_s = 8000;
  hardware.network_gbytes_per_s = 900;
  hardware.latency_us = 5;
  return hardware;
}

// All layouts of one model on some numbers of devices.
inline std::vector<HelixLayout> some_layouts(const HelixModel& model) {
  std::vector<HelixLayout> layouts;
  for (const int devices : {1, 2, 4, 8, 16, 64}) {
    const std::vector<HelixLayout> more = helix_layouts(model, devices);
    layouts.insert(layouts.end(), more.begin(), more.end());
  }
  return layouts;
}

inline std::vector<HelixModel> some_models() {
  return {dense_model(), load_helix_model("llama-3-8b"), load_helix_model("deepseek-r1")};
}

}  // namespace contextile
