#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/names_file.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "contextile/serving/helix.h"

namespace contextile {
namespace {

constexpr std::int32_t kMost = 1 << 24;

// DeepSeek-V3 technical report, section 4.2, and its config.json: 671e9 weights without routers
// and the layer that predicts a second token.
HelixModel deepseek_r1() {
  return {.shape = {.name = "deepseek-r1",
                    .layers = 61,
                    .hidden = 7168,
                    .q_heads = 128,
                    .kv_heads = 1,
                    .head_dim = 128,
                    .ffn = 18432,
                    .vocabulary = 129280},
          .latent = LatentAttention{},
          .experts = HelixExperts{}};
}

// Experts of one size; shared ones are several of them.
HelixExperts helix_experts_of(const ModelSpec& model) {
  const ModelExperts& experts = model.experts;
  CONTEXTILE_CHECK(experts.shared_ffn % experts.ffn == 0,
                   "model {}: expected a size of shared experts that is a multiple of {}, that of "
                   "an expert, found {}",
                   quote(model.name), experts.ffn, experts.shared_ffn);
  return {.routed = experts.experts,
          .active = experts.per_token,
          .shared = experts.shared_ffn / experts.ffn,
          .ffn = experts.ffn,
          .dense_layers = experts.dense_layers};
}

LatentAttention latent_attention_of(const ModelSpec& model) {
  const LatentAttentionSizes& latent = model.latent;
  CONTEXTILE_CHECK(latent.q_rank > 0,
                   "model {}: expected latent attention with a rank of queries, found none",
                   quote(model.name));
  return {.query_rank = latent.q_rank,
          .kv_rank = latent.kv_rank,
          .rope_dim = latent.rope_dim,
          .nope_dim = model.head_dim - latent.rope_dim,
          .value_dim = model.value_elements()};
}

// The same model in this room's terms. Refuses what its predictions do not know.
HelixModel helix_model_of(const LoadedModel& loaded) {
  const ModelSpec& model = loaded.model;
  const std::string name = quote(model.name);
  CONTEXTILE_CHECK(loaded.masks.empty(),
                   "model {}: expected full attention in all layers, found {} in {}", name,
                   to_string(loaded.masks.back().spec), loaded.masks.back().layers);
  CONTEXTILE_CHECK(!model.tied_embeddings,
                   "model {}: expected an embedding and a head, found tied embeddings", name);
  const bool latent = model.latent.kv_rank > 0;
  CONTEXTILE_CHECK(latent || model.value_elements() == model.head_dim,
                   "model {}: expected values of {} elements like its keys, found {}", name,
                   model.head_dim, model.value_elements());
  HelixModel result{.shape = model};
  result.shape.value_dim = 0;
  result.shape.experts = {};
  result.shape.latent = {};
  if (latent) {
    result.latent = latent_attention_of(model);
    result.shape.kv_heads = 1;
  }
  if (model.has_experts()) {
    result.experts = helix_experts_of(model);
    if (model.experts.dense_layers == 0) result.shape.ffn = model.experts.ffn;  // of no layer
  }
  return result;
}

struct Size {
  const char* what;
  std::int32_t value;
  std::int32_t least;
  std::int32_t most;
};

void check_sizes(const HelixModel& model, std::span<const Size> sizes) {
  for (const auto& [what, value, least, most] : sizes) {
    CONTEXTILE_CHECK(value >= least && value <= most, "model {}: {}: expected {} to {}, found {}",
                     quote(model.shape.name), what, least, most, value);
  }
}

void check_positive(std::string_view where, std::string_view what, double value) {
  CONTEXTILE_CHECK(std::isfinite(value) && value > 0, "{}: {}: expected more than 0, found {}",
                   where, what, value);
}

}  // namespace

void check_helix_model(const HelixModel& model) {
  check_model(model.shape);
  const std::string where = "model " + quote(model.shape.name);
  check_positive(where, "bytes of a weight", model.weight_bytes);
  check_positive(where, "bytes of a cached element", model.kv_bytes);
  check_positive(where, "bytes of an activation", model.activation_bytes);
  if (model.latent) {
    const LatentAttention& latent = *model.latent;
    check_sizes(model, std::array<Size, 6>{{{"KV heads with a latent", model.shape.kv_heads, 1, 1},
                                            {"query rank", latent.query_rank, 1, kMost},
                                            {"KV rank", latent.kv_rank, 1, kMost},
                                            {"rope dim", latent.rope_dim, 0, kMost},
                                            {"nope dim", latent.nope_dim, 1, kMost},
                                            {"value dim", latent.value_dim, 1, kMost}}});
  }
  if (model.experts) {
    const HelixExperts& experts = *model.experts;
    check_sizes(model, std::array<Size, 5>{
                           {{"routed experts", experts.routed, 1, 1 << 16},
                            {"active experts", experts.active, 1, experts.routed},
                            {"shared experts", experts.shared, 0, 1 << 16},
                            {"feed-forward of an expert", experts.ffn, 1, kMost},
                            {"dense layers", experts.dense_layers, 0, model.shape.layers}}});
  }
}

std::vector<std::string> helix_model_names() {
  std::vector<std::string> names;
  for (const ModelPreset& preset : model_presets()) names.push_back(preset.model.name);
  names.push_back(deepseek_r1().shape.name);
  return names;
}

HelixModel load_helix_model(std::string_view text) {
  const std::vector<std::string> names = helix_model_names();
  if (text == names.back()) return deepseek_r1();
  CONTEXTILE_CHECK(names_file(text) || std::ranges::find(names, text) != names.end(),
                   "model: expected one of {} or a JSON file, found {}{}", fmt::join(names, ", "),
                   quote(text), did_you_mean(text, names));
  return helix_model_of(load_described_model(text));
}

void check_helix_hardware(const HelixHardware& hardware) {
  const std::string where = "hardware " + quote(hardware.name);
  check_positive(where, "memory in GB/s", hardware.memory_gbytes_per_s);
  check_positive(where, "network in GB/s", hardware.network_gbytes_per_s);
  check_positive(where, "TFLOP/s", hardware.tflops);
  CONTEXTILE_CHECK(std::isfinite(hardware.latency_us) && hardware.latency_us >= 0,
                   "{}: latency in microseconds: expected at least 0, found {}", where,
                   hardware.latency_us);
  CONTEXTILE_CHECK(std::isfinite(hardware.launch_us) && hardware.launch_us >= 0,
                   "{}: launches of a layer in microseconds: expected at least 0, found {}", where,
                   hardware.launch_us);
  CONTEXTILE_CHECK(hardware.memory_bytes >= 1, "{}: memory in bytes: expected at least 1, found {}",
                   where, hardware.memory_bytes);
  CONTEXTILE_CHECK(hardware.reserve_bytes >= 0,
                   "{}: reserve in bytes: expected at least 0, found {}", where,
                   hardware.reserve_bytes);
  CONTEXTILE_CHECK(hardware.max_devices >= 1, "{}: devices: expected at least 1, found {}", where,
                   hardware.max_devices);
}

const std::vector<HelixHardware>& helix_hardware_presets() {
  static const std::vector<HelixHardware> kPresets = {
      {.name = "gb200",
       .description =
           "GB200 NVL72, a 72nd of it (NVIDIA's data sheet: 576 TB/s and 13.4 TB of "
           "memory, 130 TB/s of NVLink in both directions, 180 PFLOP/s of dense bf16); latency "
           "as dgx-h200"},
      {.name = "h200",
       .description = "one GPU of the cluster preset dgx-h200",
       .memory_gbytes_per_s = 4800,
       .network_gbytes_per_s = 450,
       .tflops = 989,
       .memory_bytes = 141'000'000'000,
       .max_devices = 8},
      {.name = "h100",
       .description = "one GPU of the cluster preset dgx-h100",
       .memory_gbytes_per_s = 3350,
       .network_gbytes_per_s = 450,
       .tflops = 989,
       .memory_bytes = 80'000'000'000,
       .max_devices = 8},
  };
  return kPresets;
}

HelixHardware load_helix_hardware(std::string_view name) {
  std::vector<std::string> names;
  for (const HelixHardware& preset : helix_hardware_presets()) {
    if (preset.name == name) return preset;
    names.push_back(preset.name);
  }
  fail_argument("hardware: expected one of {}, found {}{}", fmt::join(names, ", "), quote(name),
                did_you_mean(name, names));
}

}  // namespace contextile
