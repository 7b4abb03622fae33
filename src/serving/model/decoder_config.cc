#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "contextile/serving/decoder_model.h"

namespace contextile {
namespace {

using nlohmann::json;

// Values of a config.json; null counts as absent.
class ConfigReader {
 public:
  ConfigReader(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    CONTEXTILE_CHECK(object.is_object(), "{}: expected an object, found {}", where_,
                     object.type_name());
  }

  [[nodiscard]] bool has(const char* key) const {
    return object_.contains(key) && !object_.at(key).is_null();
  }
  [[nodiscard]] const json& at(const char* key) const {
    CONTEXTILE_CHECK(has(key), "{}: expected a key {}, found none", where_, key);
    return object_.at(key);
  }
  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t most) const {
    const json& value = at(key);
    CONTEXTILE_CHECK(value.is_number_integer() && value >= 1 && value <= most,
                     "{}, {}: expected an integer of 1 to {}, found {}", where_, key, most,
                     text(value));
    return value.get<std::int64_t>();
  }
  [[nodiscard]] std::int32_t count(const char* key) const {
    return static_cast<std::int32_t>(integer(key, std::numeric_limits<std::int32_t>::max()));
  }
  [[nodiscard]] double positive(const char* key) const {
    const json& value = at(key);
    CONTEXTILE_CHECK(value.is_number() && value > 0 && value.get<double>() < 1e300,
                     "{}, {}: expected a positive number, found {}", where_, key, text(value));
    return value.get<double>();
  }
  [[nodiscard]] bool flag(const char* key, bool unless_there) const {
    if (!has(key)) return unless_there;
    CONTEXTILE_CHECK(at(key).is_boolean(), "{}, {}: expected true or false, found {}", where_, key,
                     text(at(key)));
    return at(key).get<bool>();
  }
  [[nodiscard]] std::string word(const char* key) const {
    CONTEXTILE_CHECK(at(key).is_string(), "{}, {}: expected text, found {}", where_, key,
                     text(at(key)));
    return at(key).get<std::string>();
  }
  template <typename... Args>
  [[noreturn]] void fail(const char* key, fmt::format_string<Args...> format,
                         Args&&... args) const {
    fail_argument("{}, {}: {}", where_, key, fmt::format(format, std::forward<Args>(args)...));
  }
  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  [[nodiscard]] static std::string text(const json& value) { return quote(value.dump()); }

  const json& object_;
  std::string where_;
};

void read_scaling(const ConfigReader& scaling, RopeConfig& rope) {
  const char* key = scaling.has("rope_type") ? "rope_type" : "type";
  const std::string kind = scaling.has(key) ? scaling.word(key) : "default";
  if (kind == "default") return;
  if (kind != "linear" && kind != "llama3") {
    scaling.fail(key, "expected default, linear or llama3, found {}", quote(kind));
  }
  rope.factor = scaling.positive("factor");
  if (kind == "linear") return;
  rope.low_frequency = scaling.positive("low_freq_factor");
  rope.high_frequency = scaling.positive("high_freq_factor");
  rope.original_length = scaling.count("original_max_position_embeddings");
}

// Newer files have theta and scaling in one object, older ones as separate keys.
RopeConfig read_rope(const ConfigReader& config) {
  RopeConfig rope;
  if (config.has("rope_theta")) rope.theta = config.positive("rope_theta");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!config.has(key)) continue;
    const ConfigReader scaling(config.at(key), config.where() + ", " + key);
    if (scaling.has("rope_theta")) rope.theta = scaling.positive("rope_theta");
    read_scaling(scaling, rope);
  }
  return rope;
}

// Windows as layer_types names them, or the family's default without.
std::vector<std::int32_t> read_windows(const ConfigReader& config, const std::string& family,
                                       std::int32_t num_layers) {
  const bool uses = family == "mistral" || config.flag("use_sliding_window", false);
  if (!uses || !config.has("sliding_window")) return {};
  const std::int32_t window = config.count("sliding_window");
  std::vector<std::int32_t> windows(static_cast<std::size_t>(num_layers), window);
  if (config.has("layer_types")) {
    const json& types = config.at("layer_types");
    if (!types.is_array() || types.size() != windows.size()) {
      config.fail("layer_types", "expected {} entries, found {}", num_layers, types.size());
    }
    for (std::size_t i = 0; i < windows.size(); ++i) {
      if (types[i] == "full_attention") {
        windows[i] = 0;
      } else if (types[i] != "sliding_attention") {
        config.fail("layer_types", "expected full_attention or sliding_attention, found {}",
                    quote(types[i].dump()));
      }
    }
  } else if (config.has("max_window_layers")) {  // the first of Qwen's see all
    const std::int64_t full = config.integer("max_window_layers", 1'000'000);
    std::fill_n(windows.begin(), std::min<std::int64_t>(full, num_layers), 0);
  }
  return windows;
}

std::vector<std::int32_t> read_end_tokens(const ConfigReader& config) {
  if (!config.has("eos_token_id")) return {};
  const json& value = config.at("eos_token_id");
  const json list = value.is_array() ? value : json::array({value});
  std::vector<std::int32_t> tokens;
  for (const json& token : list) {
    if (!token.is_number_integer() || token < 0 ||
        token > std::numeric_limits<std::int32_t>::max()) {
      config.fail("eos_token_id", "expected token ids, found {}", quote(value.dump()));
    }
    tokens.push_back(token.get<std::int32_t>());
  }
  return tokens;
}

// The model's own end tokens, unless generation_config.json has others, which transformers'
// generate uses.
std::vector<std::int32_t> end_tokens_of(const std::string& folder, const ConfigReader& config) {
  const std::filesystem::path path = std::filesystem::path(folder) / "generation_config.json";
  if (!std::filesystem::exists(path)) return read_end_tokens(config);
  const FileBytes file(path.string(), expect_text("a configuration of generation"));
  const json document = parse_json(file.text(), file.name());
  const ConfigReader generation(document, file.name());
  return read_end_tokens(generation.has("eos_token_id") ? generation : config);
}

}  // namespace

DecoderConfig read_decoder_config(const std::string& folder) {
  const FileBytes file((std::filesystem::path(folder) / "config.json").string(),
                       expect_text("a model's configuration"));
  const json document = parse_json(file.text(), file.name());
  const ConfigReader reader(document, file.name());
  static const std::set<std::string> kFamilies = {"llama", "mistral", "qwen2", "qwen3"};
  const std::string family = reader.word("model_type");
  if (!kFamilies.contains(family)) {
    reader.fail("model_type", "expected one of {}, found {}", fmt::join(kFamilies, ", "),
                quote(family));
  }
  if (reader.has("hidden_act") && reader.word("hidden_act") != "silu") {
    reader.fail("hidden_act", "expected silu, found {}", quote(reader.word("hidden_act")));
  }
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (reader.has(key)) reader.fail(key, "expected weights that are not quantized, found some");
  }
  if (reader.flag("mlp_bias", false)) reader.fail("mlp_bias", "expected false, found true");
  DecoderConfig config;
  config.vocab_size = reader.count("vocab_size");
  config.hidden_size = reader.count("hidden_size");
  config.num_layers = reader.count("num_hidden_layers");
  config.q_heads = reader.count("num_attention_heads");
  config.kv_heads =
      reader.has("num_key_value_heads") ? reader.count("num_key_value_heads") : config.q_heads;
  config.head_dim =
      reader.has("head_dim") ? reader.count("head_dim") : config.hidden_size / config.q_heads;
  config.ffn_size = reader.count("intermediate_size");
  config.windows = read_windows(reader, family, config.num_layers);
  config.rope = read_rope(reader);
  config.norm_epsilon = reader.has("rms_norm_eps") ? reader.positive("rms_norm_eps") : 1e-6;
  const bool attention_bias = reader.flag("attention_bias", false);
  config.qkv_bias = family == "qwen2" || attention_bias;
  config.o_bias = family != "qwen2" && attention_bias;
  config.qk_norm = family == "qwen3";
  config.tied_embeddings = reader.flag("tie_word_embeddings", false);
  if (reader.has("max_position_embeddings")) {
    config.max_length = reader.count("max_position_embeddings");
  }
  config.end_tokens = end_tokens_of(folder, reader);
  check_decoder_config(config);
  return config;
}

void check_decoder_config(const DecoderConfig& config) {
  static constexpr std::int32_t kMost = 1 << 24;
  const auto check = [](std::string_view name, std::int64_t value) {
    CONTEXTILE_CHECK(value >= 1 && value <= kMost, "model, {}: expected 1 to {}, found {}", name,
                     kMost, value);
  };
  check("vocab_size", config.vocab_size);
  check("hidden_size", config.hidden_size);
  check("num_layers", config.num_layers);
  check("q_heads", config.q_heads);
  check("kv_heads", config.kv_heads);
  check("head_dim", config.head_dim);
  check("ffn_size", config.ffn_size);
  CONTEXTILE_CHECK(config.q_heads % config.kv_heads == 0,
                   "model, kv_heads: expected a divisor of {} query heads, found {}",
                   config.q_heads, config.kv_heads);
  CONTEXTILE_CHECK(config.head_dim % 2 == 0,
                   "model, head_dim: expected an even number for rotary embedding, found {}",
                   config.head_dim);
  CONTEXTILE_CHECK(config.windows.size() <= static_cast<std::size_t>(config.num_layers),
                   "model, windows: expected at most {}, found {}", config.num_layers,
                   config.windows.size());
  for (const std::int32_t window : config.windows) {
    CONTEXTILE_CHECK(window >= 0, "model, windows: expected 0 or more tokens, found {}", window);
  }
  CONTEXTILE_CHECK(config.max_length >= 1, "model, max_length: expected at least 1, found {}",
                   config.max_length);
}

std::int64_t num_parameters(const DecoderConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t q = std::int64_t{config.q_heads} * config.head_dim;
  const std::int64_t kv = std::int64_t{config.kv_heads} * config.head_dim;
  std::int64_t layer = hidden * (2 * q + 2 * kv) + 3 * hidden * config.ffn_size + 2 * hidden;
  if (config.qkv_bias) layer += q + 2 * kv;
  if (config.o_bias) layer += hidden;
  if (config.qk_norm) layer += 2 * config.head_dim;
  const std::int64_t tables = config.tied_embeddings ? 1 : 2;
  return config.num_layers * layer + tables * config.vocab_size * hidden + hidden;
}

std::int64_t kv_bytes_per_token(const DecoderConfig& config, KvDtype dtype, std::int64_t kv_heads) {
  const std::int64_t heads = kv_heads > 0 ? kv_heads : config.kv_heads;
  return 2 * config.num_layers * heads * config.head_dim * bytes_per_element(dtype);
}

}  // namespace contextile
