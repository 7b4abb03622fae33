#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/file_bytes.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "contextile/serving/decoder_model.h"
#include "serving/model/config_reader.h"
#include "serving/model/model_file.h"
#include "serving/model/model_parts.h"

namespace contextile {
namespace {

using nlohmann::json;

const std::set<std::string> kQwen = {"qwen2", "qwen3", "qwen3_moe"};

// The window of layers that have one; 0: none has. Defaults are those of the families' classes in
// transformers.
std::int32_t read_window(const ConfigReader& config, const std::string& family) {
  if (kQwen.contains(family)) {
    return config.flag("use_sliding_window", false) ? config.count("sliding_window", 4096) : 0;
  }
  if (family == "mixtral") return config.count("sliding_window", 0);
  if (family == "gpt_oss") return config.count("sliding_window", 128);
  if (family != "mistral") {
    config.expect("sliding_window", nullptr);
    return 0;
  }
  return config.is_null("sliding_window") ? 0 : config.count("sliding_window", 4096);
}

// The number of first layers of Qwen's models that see all tokens.
std::int32_t read_full_layers(const ConfigReader& config, const std::string& family,
                              std::int32_t num_layers) {
  if (family == "qwen3_moe") return 0;  // its files have the key, and its layers do not look at it
  if (!kQwen.contains(family)) {
    config.expect("max_window_layers", nullptr);
    return 0;
  }
  const std::int64_t full =
      config.has("max_window_layers") ? config.integer("max_window_layers", 0, 1'000'000) : 28;
  return static_cast<std::int32_t>(std::min<std::int64_t>(full, num_layers));
}

// Windows as layer_types names them, or the family's default without.
std::vector<std::int32_t> read_windows(const ConfigReader& config, const std::string& family,
                                       std::int32_t num_layers) {
  const std::int32_t window = read_window(config, family);
  const std::int32_t full = read_full_layers(config, family, num_layers);
  std::vector<std::int32_t> windows(static_cast<std::size_t>(num_layers), window);
  if (config.has("layer_types")) {
    const json& types = config.at("layer_types");
    if (!types.is_array() || types.size() != windows.size()) {
      config.fail("layer_types", "expected {} entries, found {}", num_layers, types.size());
    }
    for (std::size_t i = 0; i < windows.size(); ++i) {
      if (types[i] == "full_attention") {
        windows[i] = 0;
      } else if (types[i] != "sliding_attention" || window == 0) {
        config.fail("layer_types", "expected full_attention{}, found {}",
                    window == 0 ? " without a window" : " or sliding_attention",
                    quote(types[i].dump()));
      }
    }
  } else if (family == "gpt_oss") {  // every second layer sees all
    for (std::size_t i = 1; i < windows.size(); i += 2) windows[i] = 0;
  } else {
    std::fill_n(windows.begin(), full, 0);
  }
  const bool has_some = std::ranges::any_of(windows, [](std::int32_t its) { return its > 0; });
  return has_some ? windows : std::vector<std::int32_t>{};
}

std::vector<std::int32_t> read_end_tokens(const ConfigReader& config) {
  if (!config.has("eos_token_id")) return {};
  const json& value = config.at("eos_token_id");
  const json list = value.is_array() ? value : json::array({value});
  std::vector<std::int32_t> tokens;
  for (const json& token : list) {
    if (!json_integer(token, 0, std::numeric_limits<std::int32_t>::max())) {
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
  const FileBytes file(model_file(path.string()), expect_text("a configuration of generation"));
  const json document = parse_json(file.text(), file.name());
  const ConfigReader generation(document, file.name());
  return read_end_tokens(generation.has("eos_token_id") ? generation : config);
}

// Fields that other models have, or these ones with other values, and that change their outputs.
void check_fields(const ConfigReader& reader) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (reader.has(key)) reader.fail(key, "expected weights that are not quantized, found some");
  }
  reader.expect("hidden_act", "silu");
  reader.expect("mlp_bias", false);
  reader.expect("is_causal", true);
  reader.expect("moe_layer_freq", 1);
  for (const char* key :
       {"attention_chunk_size", "attention_multiplier", "attn_logit_softcapping", "clip_qkv",
        "embedding_multiplier", "final_logit_softcapping", "logit_scale", "logits_scaling",
        "no_rope_layers", "query_pre_attn_scalar", "residual_multiplier"}) {
    reader.expect(key, nullptr);
  }
}

void read_attention(const ConfigReader& reader, const std::string& family, DecoderConfig& config) {
  config.q_heads = reader.count("num_attention_heads");
  config.kv_heads = reader.count("num_key_value_heads", config.q_heads);
  config.head_dim = reader.count("head_dim", config.hidden_size / config.q_heads);
  const std::int32_t kv_heads = config.kv_heads;
  read_latent(reader, family, config);
  if (config.latent && kv_heads != config.q_heads) {
    reader.fail("num_key_value_heads", "expected as many as query heads, {}, found {}",
                config.q_heads, kv_heads);
  }
  const bool bias = reader.flag("attention_bias", family == "gpt_oss");
  if (config.latent) reader.expect("attention_bias", false);
  config.qkv_bias = family == "qwen2" || bias;
  config.o_bias = family != "qwen2" && bias;
  config.qk_norm = family == "qwen3" || family == "qwen3_moe";
  config.sinks = family == "gpt_oss";
  if (family == "mixtral") config.rope.theta = 1e6;
  if (family == "gpt_oss") {
    config.rope.theta = 150'000;
    // Its class has a scaling of its own where the file has none.
    if (!reader.has("rope_scaling")) static_cast<void>(reader.at("rope_parameters"));
  }
  read_rope(reader, config);
}

}  // namespace

DecoderConfig read_decoder_config(const std::string& folder) {
  const FileBytes file(model_file((std::filesystem::path(folder) / "config.json").string()),
                       expect_text("a model's configuration"));
  const json document = parse_json(file.text(), file.name());
  const ConfigReader reader(document, file.name());
  static const std::set<std::string> kFamilies = {"deepseek_v2", "deepseek_v3", "gpt_oss",
                                                  "llama",       "mistral",     "mixtral",
                                                  "qwen2",       "qwen3",       "qwen3_moe"};
  const std::string family = reader.word("model_type");
  if (!kFamilies.contains(family)) {
    reader.fail("model_type", "expected one of {}, found {}", fmt::join(kFamilies, ", "),
                quote(family));
  }
  check_fields(reader);
  DecoderConfig config;
  config.vocab_size = reader.count("vocab_size");
  config.hidden_size = reader.count("hidden_size");
  config.num_layers = reader.count("num_hidden_layers");
  config.ffn_size = reader.count("intermediate_size");
  read_attention(reader, family, config);
  read_experts(reader, family, config);
  config.windows = read_windows(reader, family, config.num_layers);
  const bool is_coarse = family == "mixtral" || family == "gpt_oss";
  config.norm_epsilon = reader.positive("rms_norm_eps", is_coarse ? 1e-5 : 1e-6);
  config.tied_embeddings = reader.flag("tie_word_embeddings", false);
  if (family == "deepseek_v3") {
    const char* key = "num_nextn_predict_layers";
    config.draft_layers =
        reader.has(key) ? static_cast<std::int32_t>(reader.integer(key, 0, 1000)) : 1;
  }
  if (reader.has("max_position_embeddings")) {
    config.max_length = reader.count("max_position_embeddings");
  }
  config.end_tokens = end_tokens_of(folder, reader);
  check_decoder_config(config);
  return config;
}

}  // namespace contextile
