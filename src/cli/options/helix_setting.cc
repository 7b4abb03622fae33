#include "cli/options/helix_setting.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "cli/options/types.h"

namespace contextile {
namespace {

template <typename Target, typename Value>
void set_given(Target& target, const std::optional<Value>& given) {
  if (given) target = *given;
}

}  // namespace

void add_element_options(CLI::App& app, HelixSettingOptions& options) {
  const HelixModel model;
  add_number(app, "--weight-bytes", options.weight_bytes,
             {"X", "of an element of a matrix", fmt::format("{}", model.weight_bytes)});
  add_number(app, "--kv-bytes", options.kv_bytes,
             {"X", "of a cached element", fmt::format("{}", model.kv_bytes)});
  add_number(
      app, "--activation-bytes", options.activation_bytes,
      {"X", "of an element that moves between devices", fmt::format("{}", model.activation_bytes)});
}

void add_hardware_options(CLI::App& app, HelixSettingOptions& options) {
  std::vector<std::string> names;
  for (const HelixHardware& preset : helix_hardware_presets()) names.push_back(preset.name);
  add_text(app, "--hardware", options.hardware, {"NAME", "devices: {}", "", std::move(names)});
  const std::string preset = "as --hardware says";
  add_number(app, "--memory-bandwidth", options.memory_gbytes_per_s,
             {"X", "GB/s that a device reads", preset});
  add_number(app, "--network-bandwidth", options.network_gbytes_per_s,
             {"X", "GB/s that a device sends, and receives as much", preset});
  add_number(app, "--latency", options.latency_us,
             {"X", "microseconds of one exchange or all-reduce", preset});
  add_number(app, "--launches", options.launch_us,
             {"X", "microseconds of a layer's kernels besides reading and computing", preset});
  add_number(app, "--tflops", options.tflops,
             {"X", "TFLOP/s of a device's matrix products, of prompts", preset});
  add_size_as<std::int64_t>(app, "--memory", options.memory_bytes, 1,
                            {"BYTES", "memory of a device", preset});
  add_size_as<std::int64_t>(app, "--reserve", options.reserve_bytes, 0,
                            {"BYTES", "of that, neither for weights nor for the cache", preset});
}

HelixModel helix_model_of(const HelixSettingOptions& options) {
  HelixModel model = load_helix_model(options.model);
  set_given(model.weight_bytes, options.weight_bytes);
  set_given(model.kv_bytes, options.kv_bytes);
  set_given(model.activation_bytes, options.activation_bytes);
  check_helix_model(model);
  return model;
}

HelixHardware helix_hardware_of(const HelixSettingOptions& options) {
  HelixHardware hardware = load_helix_hardware(options.hardware);
  set_given(hardware.memory_gbytes_per_s, options.memory_gbytes_per_s);
  set_given(hardware.network_gbytes_per_s, options.network_gbytes_per_s);
  set_given(hardware.latency_us, options.latency_us);
  set_given(hardware.launch_us, options.launch_us);
  set_given(hardware.tflops, options.tflops);
  set_given(hardware.memory_bytes, options.memory_bytes);
  set_given(hardware.reserve_bytes, options.reserve_bytes);
  check_helix_hardware(hardware);
  return hardware;
}

}  // namespace contextile
