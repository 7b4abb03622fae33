// The model and the devices of a prediction of decoding.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/app.h"
#include "contextile/serving/helix.h"

namespace contextile {

// Numbers that replace those of the presets.
struct HelixSettingOptions {
  std::string model = "llama-3-405b";
  std::optional<double> weight_bytes, kv_bytes, activation_bytes;
  std::string hardware = "gb200";
  std::optional<double> memory_gbytes_per_s, network_gbytes_per_s, latency_us, launch_us, tflops;
  std::optional<std::int64_t> memory_bytes, reserve_bytes;
};

// --weight-bytes, --kv-bytes, --activation-bytes.
void add_element_options(CLI::App& app, HelixSettingOptions& options);
// --hardware, --memory-bandwidth, --network-bandwidth, --latency, --launches, --tflops, --memory,
// --reserve.
void add_hardware_options(CLI::App& app, HelixSettingOptions& options);

// Throw InvalidArgument like load_helix_model, load_helix_hardware and the checks of
// advanced/helix.h.
[[nodiscard]] HelixModel helix_model_of(const HelixSettingOptions& options);
[[nodiscard]] HelixHardware helix_hardware_of(const HelixSettingOptions& options);

}  // namespace contextile
