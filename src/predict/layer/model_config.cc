#include "predict/layer/model_config.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "predict/layer/model_config_keys.h"

namespace contextile {
namespace {

using nlohmann::json;

// The names that a family gives to the sizes of its experts.
enum class ExpertKeys : std::uint8_t {
  kNone,
  kMixtral,   // num_local_experts of intermediate_size
  kOlmoe,     // num_experts of intermediate_size
  kQwen,      // num_experts of moe_intermediate_size; layers without them by two keys
  kDeepseek,  // n_routed_experts of moe_intermediate_size, n_shared_experts of the same size
};

// The layers of a family that have a sliding window, if no layer_types say it.
enum class WindowLayers : std::uint8_t {
  kNone,      // the family has no windows
  kAll,       // if sliding_window is set
  kLast,      // if use_sliding_window is true, those from max_window_layers on
  kAllButNth  // all except every n-th
};

struct Family {
  std::string_view name;
  ExpertKeys experts = ExpertKeys::kNone;
  WindowLayers windows = WindowLayers::kNone;
  std::int32_t nth = 0;       // kAllButNth
  bool tied = false;          // embeddings, if the file does not say
  std::int32_t head_dim = 0;  // if the file does not say; 0: hidden_size over heads
  bool latent = false;        // multi-head latent attention
};

// All have a gated feed-forward. Defaults are those of Transformers 4.57, in
// models/*/configuration_*.py.
constexpr Family kFamilies[] = {
    {.name = "llama"},
    {.name = "mistral", .windows = WindowLayers::kAll},
    {.name = "mixtral", .experts = ExpertKeys::kMixtral, .windows = WindowLayers::kAll},
    {.name = "qwen2", .windows = WindowLayers::kLast},
    {.name = "qwen2_moe", .experts = ExpertKeys::kQwen, .windows = WindowLayers::kLast},
    {.name = "qwen3", .windows = WindowLayers::kLast, .head_dim = 128},
    {.name = "qwen3_moe", .experts = ExpertKeys::kQwen, .windows = WindowLayers::kLast},
    {.name = "gemma", .tied = true, .head_dim = 256},
    {.name = "gemma2",
     .windows = WindowLayers::kAllButNth,
     .nth = 2,
     .tied = true,
     .head_dim = 256},
    {.name = "gemma3",
     .windows = WindowLayers::kAllButNth,
     .nth = 6,
     .tied = true,
     .head_dim = 256},
    {.name = "gemma3_text",
     .windows = WindowLayers::kAllButNth,
     .nth = 6,
     .tied = true,
     .head_dim = 256},
    {.name = "deepseek_v2", .experts = ExpertKeys::kDeepseek, .latent = true},
    {.name = "deepseek_v3", .experts = ExpertKeys::kDeepseek, .latent = true},
    {.name = "kimi_k2", .experts = ExpertKeys::kDeepseek, .latent = true},
    {.name = "gpt_oss",
     .experts = ExpertKeys::kMixtral,
     .windows = WindowLayers::kAllButNth,
     .nth = 2,
     .head_dim = 64},
    {.name = "phi3", .windows = WindowLayers::kAll},
    {.name = "olmo"},
    {.name = "olmo2"},
    {.name = "olmo3", .windows = WindowLayers::kAllButNth, .nth = 4},
    {.name = "olmoe", .experts = ExpertKeys::kOlmoe},
    {.name = "granite"},
};

const Family& family_of(const std::string& model_type) {
  const auto* found = std::ranges::find(kFamilies, std::string_view(model_type), &Family::name);
  if (found != std::end(kFamilies)) return *found;
  const std::vector<std::string> names = model_families();
  fail_argument("model_type: expected one of {}, found {}{}", fmt::join(names, ", "),
                model_type.empty() ? "none" : quote(model_type), did_you_mean(model_type, names));
}

// Reads one model. It asks the reader only for keys that its family has.
class ModelReader {
 public:
  ModelReader(const json& object, const Family& family) : reader_(object), family_(family) {}

  LoadedModel read(bool tied_otherwise) {
    model_.name = std::string(family_.name);
    read_layer_sizes();
    if (family_.latent) read_latent();
    read_feed_forward();
    model_.tied_embeddings = reader_.boolean_or("tie_word_embeddings", tied_otherwise);
    check_activation();
    expect_false("use_bidirectional_attention", "attention to later tokens");
    expect_false("is_encoder_decoder", "an encoder");
    if (family_.windows != WindowLayers::kNone) read_masks();
    read_left_out();
    reader_.refuse_others(fmt::format("a {} model", family_.name));
    check_model(model_);
    return std::move(result_);
  }

 private:
  // Gemma 3's files leave out what all its sizes have in common.
  [[nodiscard]] std::int32_t size(std::string_view key, std::int32_t gemma3) {
    if (!family_.name.starts_with("gemma3")) return reader_.required(key);
    return reader_.integer_or(key, gemma3);
  }

  void read_layer_sizes() {
    model_.layers = reader_.required("num_hidden_layers");
    model_.hidden = reader_.required("hidden_size");
    model_.vocabulary = size("vocab_size", 262208);
    model_.q_heads = size("num_attention_heads", 8);
    model_.kv_heads = reader_.integer_or("num_key_value_heads",
                                         family_.name.starts_with("gemma3") ? 4 : model_.q_heads);
    const std::optional<std::int32_t> head_dim = reader_.integer("head_dim");
    if (family_.latent) return;  // read_latent
    if (head_dim || family_.head_dim > 0) {
      model_.head_dim = head_dim.value_or(family_.head_dim);
      return;
    }
    CONTEXTILE_CHECK(model_.q_heads > 0 && model_.hidden % model_.q_heads == 0,
                     "head_dim: expected a value, as {} heads do not divide hidden_size {}, found "
                     "none",
                     model_.q_heads, model_.hidden);
    model_.head_dim = model_.hidden / model_.q_heads;
  }

  // Training expands keys and values to all heads, so that attention has as many KV heads as query
  // heads. The sizes are added in 64 bits; check_model sees the sum.
  void read_latent() {
    const std::int64_t nope = reader_.required("qk_nope_head_dim");
    model_.latent.rope_dim = reader_.required("qk_rope_head_dim");
    model_.latent.kv_rank = reader_.required("kv_lora_rank");
    model_.latent.q_rank = reader_.integer_or("q_lora_rank", 0);
    model_.head_dim = checked_cast<std::int32_t>(nope + model_.latent.rope_dim, "qk_nope_head_dim");
    static_cast<void>(reader_.find("qk_head_dim"));  // the sum of both
    model_.value_dim = reader_.required("v_head_dim");
    model_.kv_heads = model_.q_heads;
    CONTEXTILE_CHECK(model_.latent.kv_rank > 0 && model_.value_dim > 0 && nope > 0,
                     "kv_lora_rank, qk_nope_head_dim, v_head_dim: expected 1 or more, found {}, "
                     "{}, {}",
                     model_.latent.kv_rank, nope, model_.value_dim);
  }

  void read_feed_forward() {
    ModelExperts& experts = model_.experts;
    const auto routed = [&](std::string_view key) { return reader_.integer_or(key, 0); };
    switch (family_.experts) {
      case ExpertKeys::kNone:
        break;
      case ExpertKeys::kMixtral:
        experts.experts = routed("num_local_experts");
        break;
      case ExpertKeys::kOlmoe:
      case ExpertKeys::kQwen:
        experts.experts = routed("num_experts");
        break;
      case ExpertKeys::kDeepseek:
        experts.experts = routed("n_routed_experts");
        break;
    }
    CONTEXTILE_CHECK(experts.experts >= 0, "number of experts: expected 0 or more, found {}",
                     experts.experts);
    if (!model_.has_experts()) {
      model_.ffn = reader_.required("intermediate_size");
      return;
    }
    // gpt_oss writes both.
    const std::optional<std::int32_t> per_token = reader_.integer("experts_per_token");
    experts.per_token = per_token && reader_.find("num_experts_per_tok") == nullptr
                            ? *per_token
                            : reader_.required("num_experts_per_tok");
    if (family_.experts == ExpertKeys::kMixtral || family_.experts == ExpertKeys::kOlmoe) {
      experts.ffn = reader_.required("intermediate_size");
      model_.ffn = 0;
      return;
    }
    experts.ffn = reader_.required("moe_intermediate_size");
    if (family_.experts == ExpertKeys::kQwen) {
      read_qwen_layers();
    } else {
      read_deepseek_layers();
    }
    const std::int32_t ffn = reader_.integer_or("intermediate_size", 0);
    model_.ffn = experts.dense_layers > 0 ? ffn : 0;
  }

  void read_deepseek_layers() {
    const std::int64_t shared = reader_.integer_or("n_shared_experts", 0);
    model_.experts.shared_ffn =
        checked_cast<std::int32_t>(shared * model_.experts.ffn, "n_shared_experts");
    model_.experts.dense_layers = reader_.integer_or("first_k_dense_replace", 0);
    const std::int32_t step = reader_.integer_or("moe_layer_freq", 1);
    CONTEXTILE_CHECK(step == 1, "moe_layer_freq: expected 1, found {}", step);
  }

  // Layer i has experts if decoder_sparse_step divides i + 1 and mlp_only_layers does not name i.
  void read_qwen_layers() {
    model_.experts.shared_ffn = reader_.integer_or("shared_expert_intermediate_size", 0);
    const std::int32_t step = reader_.integer_or("decoder_sparse_step", 1);
    CONTEXTILE_CHECK(step == 1,
                     "decoder_sparse_step: expected 1, since layers without experts come first, "
                     "found {}",
                     step);
    const json* dense = reader_.find("mlp_only_layers");
    if (dense == nullptr) return;
    CONTEXTILE_CHECK(dense->is_array() && dense->size() <= kMostLayers,
                     "mlp_only_layers: expected a list of at most {} layers, found {}", kMostLayers,
                     quote(dense->dump()));
    for (std::size_t i = 0; i < dense->size(); ++i) {
      CONTEXTILE_CHECK((*dense)[i] == json(i),
                       "mlp_only_layers: expected the first layers in order, found {} in place {}",
                       quote((*dense)[i].dump()), i);
    }
    model_.experts.dense_layers = static_cast<std::int32_t>(dense->size());
  }

  void check_activation() {
    for (const char* key : {"hidden_act", "hidden_activation"}) {
      const std::string act = reader_.text(key);
      const bool known = act.empty() || act == "silu" || act == "swish" || act.starts_with("gelu");
      CONTEXTILE_CHECK(known, "{}: expected silu, swish or a gelu, found {}", key, quote(act));
    }
  }

  void expect_false(std::string_view key, std::string_view what) {
    CONTEXTILE_CHECK(!reader_.boolean_or(key, false),
                     "{}: expected false ({} is not predicted), "
                     "found true",
                     key, what);
  }

  // Number of layers with a window, from a list of their kinds.
  [[nodiscard]] std::int32_t windows_in(const json& types) const {
    CONTEXTILE_CHECK(types.is_array() && std::cmp_equal(types.size(), model_.layers),
                     "layer_types: expected a list of {} layers, found {}", model_.layers,
                     quote(types.dump()));
    std::int32_t windows = 0;
    for (std::size_t i = 0; i < types.size(); ++i) {
      const bool is_window = types[i] == "sliding_attention";
      CONTEXTILE_CHECK(is_window || types[i] == "full_attention",
                       "layer_types: expected full_attention or sliding_attention, found {} in "
                       "place {}",
                       quote(types[i].dump()), i);
      windows += is_window ? 1 : 0;
    }
    return windows;
  }

  // The same by the rule of the family. Every key of a window is read, so that none is unknown.
  [[nodiscard]] std::int32_t windows_by_rule() {
    switch (family_.windows) {
      case WindowLayers::kNone:
        return 0;
      case WindowLayers::kAll:
        return model_.layers;
      case WindowLayers::kLast:
        return std::max(0, model_.layers - reader_.integer_or("max_window_layers", 28));
      case WindowLayers::kAllButNth: {
        const std::int32_t newer = reader_.integer_or("_sliding_window_pattern", family_.nth);
        const std::int32_t nth = reader_.integer_or("sliding_window_pattern", newer);
        CONTEXTILE_CHECK(nth >= 1, "sliding_window_pattern: expected 1 or more, found {}", nth);
        return model_.layers - model_.layers / nth;
      }
    }
    return 0;
  }

  void read_masks() {
    std::int32_t windows = windows_by_rule();
    if (const json* types = reader_.find("layer_types")) windows = windows_in(*types);
    std::optional<std::int32_t> window = reader_.integer("sliding_window");
    if (family_.windows == WindowLayers::kLast &&
        !reader_.boolean_or("use_sliding_window", false)) {
      return;
    }
    if (family_.windows == WindowLayers::kAllButNth && windows > 0 && !window) {
      window = reader_.required("sliding_window");
    }
    if (!window || windows == 0) return;
    CONTEXTILE_CHECK(*window >= 1, "sliding_window: expected 1 or more, found {}", *window);
    if (windows < model_.layers) {
      result_.masks.push_back({.name = {}, .layers = model_.layers - windows, .spec = {}});
    }
    MaskSpec spec;
    spec.rule = MaskSpec::Rule::kSlidingWindow;
    spec.window = *window;
    result_.masks.push_back({.name = {}, .layers = windows, .spec = spec});
  }

  void read_left_out() {
    if (reader_.integer_or("num_nextn_predict_layers", 0) > 0) {
      result_.left_out.emplace_back("num_nextn_predict_layers: layers that predict further tokens");
    }
    if (reader_.find("quantization_config") != nullptr) {
      result_.left_out.emplace_back("quantization_config: weights are predicted in bf16");
    }
  }

  static constexpr std::int32_t kMostLayers = 1 << 12;

  ModelConfigReader reader_;
  const Family& family_;
  LoadedModel result_;
  ModelSpec& model_ = result_.model;
};

// Reads the text model of a model of several media. All other keys of the file are about the media.
LoadedModel read_text_config(const json& object) {
  const json& text = object["text_config"];
  CONTEXTILE_CHECK(text.is_object(), "text_config: expected a JSON object, found {}",
                   quote(text.dump()));
  ModelConfigReader outer(object);
  const std::string type = outer.text("model_type");
  ModelConfigReader inner(text);
  const std::string inner_type = inner.text("model_type");
  const Family& family = family_of(inner_type.empty() ? type : inner_type);
  LoadedModel loaded =
      ModelReader(text, family).read(outer.boolean_or("tie_word_embeddings", family.tied));
  for (const auto& [key, value] : object.items()) {
    if (!key.ends_with("_config") || key == "text_config" || value.is_null()) continue;
    static_cast<void>(outer.find(key));
    loaded.left_out.push_back(printable(key) + ": only the text model is predicted");
  }
  for (const auto& [key, value] : object.items()) {
    for (const char* medium : {"image_", "video_", "audio_", "vision_", "mm_", "multimodal_"}) {
      if (key.starts_with(medium)) static_cast<void>(outer.find(key));
    }
  }
  static_cast<void>(outer.find("text_config"));
  static_cast<void>(outer.find("spatial_merge_size"));
  outer.refuse_others("a model with a text_config");
  return loaded;
}

}  // namespace

std::vector<std::string> model_families() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) names.emplace_back(family.name);
  return names;
}

bool is_model_config(const json& object) {
  return object.contains("model_type") || object.contains("architectures");
}

LoadedModel read_model_config(const json& object) {
  if (object.contains("text_config")) return read_text_config(object);
  const Family& family = family_of(ModelConfigReader(object).text("model_type"));
  return ModelReader(object, family).read(family.tied);
}

}  // namespace contextile
