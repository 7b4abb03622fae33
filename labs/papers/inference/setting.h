// The setting that the tables of inference share. Its source is a survey of context parallelism in
// inference; it names no model and no devices, so these are assumptions.
#pragma once

#include <cstdint>
#include <string_view>

#include "contextile/serving/helix.h"

namespace contextile {

inline constexpr double kMfu = 0.5;                   // of the peak of matrix products
inline constexpr std::int64_t kLongPrompt = 100'000;  // tokens
inline constexpr double kBetweenNodes = 50;           // GB/s of a device

// A model in bf16.
[[nodiscard]] inline HelixModel bf16_model(std::string_view name) {
  HelixModel model = load_helix_model(name);
  model.weight_bytes = 2;
  model.kv_bytes = 2;
  return model;
}

// H100 at that share of their peak, any number of them.
[[nodiscard]] inline HelixHardware h100_devices(double gbytes_per_s = 450) {
  HelixHardware hardware = load_helix_hardware("h100");
  hardware.tflops *= kMfu;
  hardware.network_gbytes_per_s = gbytes_per_s;
  hardware.max_devices = 64;
  return hardware;
}

// One prompt in one step, on an empty cache.
[[nodiscard]] inline HelixRows prompt_rows(std::int64_t tokens) {
  const auto count = static_cast<double>(tokens);
  return {tokens, 1, tokens, count * (count + 1) / 2};
}

}  // namespace contextile
