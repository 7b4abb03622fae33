#include "contextile/advanced/model.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/names_file.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "base/suggest.h"

namespace contextile {
namespace {

using nlohmann::json;

// One multiplication and one addition per weight and token.
constexpr double kFlopsPerWeight = 2;

// Keys of a model file. Any other key is an error, because a misspelled optional key would silently
// leave its default.
const std::vector<std::string>& file_keys() {
  static const std::vector<std::string> kKeys = {"name",  "layers",     "hidden",
                                                 "heads", "kv_heads",   "head_dim",
                                                 "ffn",   "vocabulary", "gated_ffn"};
  return kKeys;
}

// Weights of the matrices of one layer. Values have head_dim elements as well, so the output
// projection has as many weights as the projection to queries.
std::int64_t query_weights(const ModelSpec& model) {
  return std::int64_t{model.hidden} * model.q_heads * model.head_dim;
}
std::int64_t key_value_weights(const ModelSpec& model) {
  return 2 * std::int64_t{model.hidden} * model.kv_heads * model.head_dim;
}
std::int64_t ffn_weights(const ModelSpec& model) {
  return std::int64_t{model.ffn_matrices()} * model.hidden * model.ffn;
}
// Weights of the embedding, and of the matrix that computes logits.
std::int64_t vocabulary_weights(const ModelSpec& model) {
  return std::int64_t{model.vocabulary} * model.hidden;
}

// Reads a required integer of 32 bits. A number with a fraction, such as 32.0, is refused.
// `check_model` judges the size.
std::int32_t integer_of(const json& object, const char* key) {
  CONTEXTILE_CHECK(object.contains(key), "{}: expected a value, found none", key);
  const json& value = object[key];
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::optional<std::int64_t> integer = json_integer(value, -kMost, kMost);
  CONTEXTILE_CHECK(integer, "{}: expected an integer of at most {}, found {}", key, kMost,
                   quote(value.dump()));
  return static_cast<std::int32_t>(*integer);
}

ModelSpec read_model(const json& object) {
  // Unknown keys come first: a misspelled required key is then named, not reported as missing.
  for (const auto& [key, value] : object.items()) {
    CONTEXTILE_CHECK(std::ranges::find(file_keys(), key) != file_keys().end(),
                     "expected the keys {}, found {}{}", fmt::join(file_keys(), ", "), quote(key),
                     did_you_mean(key, file_keys()));
  }
  ModelSpec model;
  if (object.contains("name")) {
    CONTEXTILE_CHECK(object["name"].is_string(), "name: expected text, found {}",
                     quote(object["name"].dump()));
    model.name = object["name"].get<std::string>();
  }
  model.layers = integer_of(object, "layers");
  model.hidden = integer_of(object, "hidden");
  model.q_heads = integer_of(object, "heads");
  model.kv_heads = integer_of(object, "kv_heads");
  model.head_dim = integer_of(object, "head_dim");
  model.ffn = integer_of(object, "ffn");
  model.vocabulary = integer_of(object, "vocabulary");
  if (object.contains("gated_ffn")) {
    CONTEXTILE_CHECK(object["gated_ffn"].is_boolean(),
                     "gated_ffn: expected true or false, found {}",
                     quote(object["gated_ffn"].dump()));
    model.gated_ffn = object["gated_ffn"].get<bool>();
  }
  check_model(model);
  return model;
}

}  // namespace

void check_model(const ModelSpec& model) {
  // Seven matrices of at most 2^48 weights make a layer: four of attention, three of the
  // feed-forward. With 2^12 layers they are at most 7 · 2^60 weights, which leaves room for
  // embedding and head below 2^63.
  constexpr std::int32_t kMost = 1 << 24;  // products of two sizes and the layers stay in 64 bits
  const std::pair<const char*, std::int32_t> sizes[] = {
      {"layers", model.layers},        {"hidden", model.hidden},     {"heads", model.q_heads},
      {"kv_heads", model.kv_heads},    {"head_dim", model.head_dim}, {"ffn", model.ffn},
      {"vocabulary", model.vocabulary}};
  for (const auto& [key, size] : sizes) {
    const std::int32_t most = std::string_view(key) == "layers" ? 1 << 12 : kMost;
    CONTEXTILE_CHECK(size >= 1 && size <= most, "model {}: {}: expected 1 to {}, found {}",
                     quote(model.name), key, most, size);
  }
  // The sizes are in range from here on, so they may be multiplied and divided by.
  CONTEXTILE_CHECK(std::int64_t{model.q_heads} * model.head_dim <= kMost,
                   "model {}: expected at most {} elements of all query heads, found {}",
                   quote(model.name), kMost, std::int64_t{model.q_heads} * model.head_dim);
  CONTEXTILE_CHECK(model.q_heads % model.kv_heads == 0,
                   "model {}: expected KV heads that divide {} query heads, found {}",
                   quote(model.name), model.q_heads, model.kv_heads);
}

// Counts each matrix and each norm; a ModelSpec has no biases.
ModelWeights weights_of(const ModelSpec& model) {
  check_model(model);
  ModelWeights weights;
  weights.layer = query_weights(model) + key_value_weights(model) +
                  query_weights(model) /* output projection */ + ffn_weights(model) +
                  2 * std::int64_t{model.hidden} /* norms */;
  weights.embedding = vocabulary_weights(model);
  weights.head = vocabulary_weights(model) + model.hidden;
  return weights;
}

// Counts matrix products only. Norms, activations and rotary embedding are omitted, and the lookup
// of embeddings takes no FLOPs.
LinearFlops linear_flops_of(const ModelSpec& model) {
  check_model(model);
  LinearFlops flops;
  flops.before_attention =
      kFlopsPerWeight * static_cast<double>(query_weights(model) + key_value_weights(model));
  flops.after_attention =
      kFlopsPerWeight * static_cast<double>(query_weights(model) + ffn_weights(model));
  flops.head = kFlopsPerWeight * static_cast<double>(vocabulary_weights(model));
  return flops;
}

double peak_tflops_of(const Cluster& cluster) {
  return cluster.peak_tflops > 0 ? cluster.peak_tflops : cluster.attention_tflops;
}

// FLOPs / (10^12 · TFLOP/s · mfu) seconds are FLOPs / (10^6 · TFLOP/s · mfu) microseconds.
double linear_us_per_token(const ModelSpec& model, const Cluster& cluster, double mfu) {
  return linear_flops_of(model).layer() / (1e6 * peak_tflops_of(cluster) * mfu);
}

// Not by a ModelSpec, whose check refuses shapes that attention allows.
double guessed_linear_us_per_token(const AttentionShape& shape, const Cluster& cluster) {
  constexpr double kGatedFfnMatrices = 3;
  constexpr double kFfnOverHidden = 3.5;
  const double hidden = static_cast<double>(shape.q_heads) * shape.head_dim;
  const double keys = static_cast<double>(shape.kv_heads) * shape.head_dim;
  const double weights =
      hidden * (2 * hidden + 2 * keys + kGatedFfnMatrices * kFfnOverHidden * hidden);
  return kFlopsPerWeight * weights / (1e6 * peak_tflops_of(cluster) * kLinearMfu);
}

// A tensor-parallel rank has whole KV heads and the query heads that read them, so tp must divide
// both numbers.
AttentionShape attention_shape_of(const ModelSpec& model, std::int32_t tp) {
  check_model(model);
  CONTEXTILE_CHECK(tp >= 1 && model.q_heads % tp == 0 && model.kv_heads % tp == 0,
                   "model {}: expected a tp that divides {} query heads and {} KV heads, found {}",
                   quote(model.name), model.q_heads, model.kv_heads, tp);
  AttentionShape shape;
  shape.q_heads = model.q_heads / tp;
  shape.kv_heads = model.kv_heads / tp;
  shape.head_dim = model.head_dim;
  shape.value_dim = model.head_dim;
  shape.dtype = Dtype::kBf16;
  return shape;
}

const std::vector<ModelPreset>& model_presets() {
  static const std::vector<ModelPreset> kPresets = {
      {"Llama 3 8B (The Llama 3 Herd of Models, table 3)",
       {.name = "llama-3-8b",
        .layers = 32,
        .hidden = 4096,
        .q_heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
        .ffn = 14336,
        .vocabulary = 128256}},
      {"the 34B model of the DistCA paper (hidden 8192, KV 2048, FFN 22016); vocabulary of Llama 2",
       {.name = "llama-34b",
        .layers = 48,
        .hidden = 8192,
        .q_heads = 64,
        .kv_heads = 16,
        .head_dim = 128,
        .ffn = 22016,
        .vocabulary = 32000}},
      {"Llama 3 70B (The Llama 3 Herd of Models, table 3)",
       {.name = "llama-3-70b",
        .layers = 80,
        .hidden = 8192,
        .q_heads = 64,
        .kv_heads = 8,
        .head_dim = 128,
        .ffn = 28672,
        .vocabulary = 128256}},
      {"Llama 3 405B (The Llama 3 Herd of Models, table 3)",
       {.name = "llama-3-405b",
        .layers = 126,
        .hidden = 16384,
        .q_heads = 128,
        .kv_heads = 8,
        .head_dim = 128,
        .ffn = 53248,
        .vocabulary = 128256}},
      {"GPT 8B of the DCP paper (section 7.2: 32 layers, hidden 4096, 8 KV groups, FFN 14336); "
       "gated FFN and 128256 tokens assumed, which give 8.0e9 weights",
       {.name = "gpt-8b",
        .layers = 32,
        .hidden = 4096,
        .q_heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
        .ffn = 14336,
        .vocabulary = 128256}},
  };
  return kPresets;
}

ModelSpec parse_model_json(std::string_view text, std::string_view where) {
  const json document = parse_json(text, where);
  CONTEXTILE_CHECK(document.is_object(), "{}: expected a JSON object, found {}", where,
                   quote(document.dump()));
  // `read_model` does not know the source of its text, so the source is put before its messages.
  try {
    return read_model(document);
  } catch (const InvalidArgument& error) {
    fail_argument("{}: {}", where, error.what());
  }
}

ModelSpec load_model(std::string_view text) {
  if (names_file(text)) {
    const std::string path(text);
    const FileBytes file(path, expect_text("a model as JSON"));
    return parse_model_json(file.text(), file.name());
  }
  std::vector<std::string> names;
  for (const ModelPreset& preset : model_presets()) {
    if (preset.model.name == text) return preset.model;
    names.push_back(preset.model.name);
  }
  fail_argument("model: expected one of {} or a JSON file, found {}{}", fmt::join(names, ", "),
                quote(text), did_you_mean(text, names));
}

}  // namespace contextile
