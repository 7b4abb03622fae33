#include <algorithm>

#include "serving/model/model_parts.h"

namespace contextile {
namespace {

using nlohmann::json;

// The routers of DeepSeek's models; names as their authors use them.
void read_deepseek_router(const ConfigReader& reader, const std::string& family,
                          ExpertsConfig& experts) {
  const bool is_v3 = family == "deepseek_v3";
  experts.weights = is_v3 ? ExpertsConfig::Weights::kSigmoid : ExpertsConfig::Weights::kSoftmax;
  reader.expect("scoring_func", is_v3 ? "sigmoid" : "softmax");
  experts.norm_weights = reader.flag("norm_topk_prob", is_v3);
  if (!is_v3) reader.expect("norm_topk_prob", false);
  experts.weight_factor = reader.positive("routed_scaling_factor", is_v3 ? 2.5 : 1);
  const std::string method = reader.has("topk_method") ? reader.word("topk_method")
                             : is_v3                   ? "noaux_tc"
                                                       : "greedy";
  const bool has_groups = is_v3 || method == "group_limited_greedy";
  if (is_v3 ? method != "noaux_tc" : !has_groups && method != "greedy") {
    reader.fail("topk_method", "expected {}, found {}",
                is_v3 ? "noaux_tc" : "greedy or group_limited_greedy", quote(method));
  }
  if (!has_groups) return;
  experts.num_groups = is_v3 ? reader.count("n_group", 8) : reader.count("n_group");
  experts.top_groups = is_v3 ? reader.count("topk_group", 4) : reader.count("topk_group");
}

ExpertsConfig deepseek_experts(const ConfigReader& reader, const std::string& family) {
  ExpertsConfig experts;
  experts.num_experts = reader.count("n_routed_experts");
  experts.top_k = reader.count("num_experts_per_tok");
  experts.ffn_size = reader.count("moe_intermediate_size");
  const bool has_none = reader.is_null("n_shared_experts") ||
                        (reader.has("n_shared_experts") && reader.at("n_shared_experts") == 0);
  const std::int32_t unless_there = family == "deepseek_v3" ? 1 : 2;
  if (!has_none) {
    experts.shared_size = experts.ffn_size * reader.count("n_shared_experts", unless_there);
  }
  read_deepseek_router(reader, family, experts);
  return experts;
}

ExpertsConfig qwen_experts(const ConfigReader& reader) {
  ExpertsConfig experts;
  experts.num_experts =
      reader.count(reader.has("num_experts") ? "num_experts" : "num_local_experts");
  experts.top_k = reader.count("num_experts_per_tok");
  experts.ffn_size = reader.count("moe_intermediate_size");
  experts.norm_weights = reader.flag("norm_topk_prob", false);
  return experts;
}

ExpertsConfig mixtral_experts(const ConfigReader& reader) {
  ExpertsConfig experts;
  experts.num_experts = reader.count("num_local_experts");
  experts.top_k = reader.count("num_experts_per_tok");
  experts.ffn_size = reader.count("intermediate_size");
  experts.files = ExpertsConfig::Files::kMixtral;
  return experts;
}

ExpertsConfig gpt_oss_experts(const ConfigReader& reader) {
  ExpertsConfig experts = mixtral_experts(reader);
  experts.weights = ExpertsConfig::Weights::kChosenSoftmax;
  experts.norm_weights = false;
  experts.files = ExpertsConfig::Files::kGptOss;
  ExpertsConfig::ClampedGate gate;
  gate.alpha = reader.positive("swiglu_alpha", gate.alpha);
  gate.limit = reader.positive("swiglu_limit", gate.limit);
  experts.clamped = gate;
  return experts;
}

// Layers without experts: those that mlp_only_layers lists, and all but each n-th.
std::vector<std::int32_t> qwen_dense_layers(const ConfigReader& reader, std::int32_t num_layers) {
  const std::int32_t step = reader.count("decoder_sparse_step", 1);
  const json listed = reader.has("mlp_only_layers") ? reader.at("mlp_only_layers") : json::array();
  if (!listed.is_array() || !std::ranges::all_of(listed, &json::is_number_integer)) {
    reader.fail("mlp_only_layers", "expected numbers of layers, found {}", quote(listed.dump()));
  }
  std::vector<std::int32_t> dense;
  for (std::int32_t i = 0; i < num_layers; ++i) {
    const bool is_listed = std::ranges::find(listed, json(i)) != listed.end();
    if (is_listed || (i + 1) % step != 0) dense.push_back(i);
  }
  return dense;
}

}  // namespace

void read_experts(const ConfigReader& reader, const std::string& family, DecoderConfig& config) {
  if (family == "mixtral") {
    config.experts = mixtral_experts(reader);
  } else if (family == "gpt_oss") {
    config.experts = gpt_oss_experts(reader);
  } else if (family == "qwen3_moe") {
    config.experts = qwen_experts(reader);
    config.dense_layers = qwen_dense_layers(reader, config.num_layers);
  } else if (family == "deepseek_v2" || family == "deepseek_v3") {
    const std::int64_t first = reader.has("first_k_dense_replace")
                                   ? reader.integer("first_k_dense_replace", 0, 1'000'000)
                               : family == "deepseek_v3" ? 3
                                                         : 0;
    for (std::int32_t i = 0; i < std::min<std::int64_t>(first, config.num_layers); ++i) {
      config.dense_layers.push_back(i);
    }
    if (first < config.num_layers) config.experts = deepseek_experts(reader, family);
  }
  if (config.experts && std::ssize(config.dense_layers) == config.num_layers) {
    config.experts.reset();
  }
  if (!config.experts) config.dense_layers.clear();
}

void read_latent(const ConfigReader& reader, const std::string& family, DecoderConfig& config) {
  if (family != "deepseek_v2" && family != "deepseek_v3") return;
  LatentConfig latent;
  // Files leave out what is null, which here differs from the default of the family.
  latent.q_rank = reader.count("q_lora_rank", 0);
  latent.kv_rank = reader.count("kv_lora_rank");
  latent.rope_dim = reader.count("qk_rope_head_dim");
  latent.value_dim = reader.count("v_head_dim");
  config.head_dim = reader.count("qk_nope_head_dim") + latent.rope_dim;
  config.kv_heads = 1;
  config.rope.interleaved = family == "deepseek_v2" || reader.flag("rope_interleave", true);
  config.latent = latent;
}

}  // namespace contextile
