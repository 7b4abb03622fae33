#include "predict/layer/model_config_keys.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <vector>

#include "base/check.h"
#include "base/parse_json.h"
#include "base/quote.h"

namespace contextile {
namespace {

using nlohmann::json;

// Numerics, tokens, initialization, positions, biases, losses, routing, dropout, and the settings
// of a run of Transformers.
constexpr std::string_view kIgnored[] = {"_attn_implementation",
                                         "_attn_implementation_autoset",
                                         "_commit_hash",
                                         "_name_or_path",
                                         "architectures",
                                         "attention_bias",
                                         "attention_out_bias",
                                         "attn_logit_softcapping",
                                         "auto_map",
                                         "aux_loss_alpha",
                                         "cache_implementation",
                                         "chunk_size_feed_forward",
                                         "dtype",
                                         "ep_size",
                                         "final_logit_softcapping",
                                         "id2label",
                                         "initial_context_length",
                                         "initializer_factor",
                                         "initializer_range",
                                         "label2id",
                                         "logits_scaling",
                                         "max_position_embeddings",
                                         "mlp_bias",
                                         "model_type",
                                         "n_group",
                                         "norm_topk_prob",
                                         "original_max_position_embeddings",
                                         "output_attentions",
                                         "output_hidden_states",
                                         "output_router_logits",
                                         "partial_rotary_factor",
                                         "pretraining_tp",
                                         "qkv_bias",
                                         "query_pre_attn_scalar",
                                         "return_dict",
                                         "router_jitter_noise",
                                         "routed_scaling_factor",
                                         "scoring_func",
                                         "seq_aux",
                                         "swiglu_limit",
                                         "tokenizer_class",
                                         "topk_group",
                                         "topk_method",
                                         "torch_dtype",
                                         "torchscript",
                                         "transformers_version",
                                         "use_bfloat16",
                                         "use_cache",
                                         "use_mrope",
                                         "use_qk_norm"};
constexpr std::string_view kIgnoredBegins[] = {"rope_"};
constexpr std::string_view kIgnoredEnds[] = {"_token_id", "_token_index", "_dropout",  "_pdrop",
                                             "_eps",      "_multiplier",  "_loss_coef"};

}  // namespace

std::int32_t integer_at(const json& object, std::string_view key) {
  const auto found = object.find(key);
  CONTEXTILE_CHECK(found != object.end(), "{}: expected a value, found none", key);
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const std::optional<std::int64_t> integer = json_integer(*found, -kMost, kMost);
  CONTEXTILE_CHECK(integer, "{}: expected an integer of at most {}, found {}", key, kMost,
                   quote(found->dump()));
  return static_cast<std::int32_t>(*integer);
}

bool changes_nothing(std::string_view key) {
  return std::ranges::find(kIgnored, key) != std::end(kIgnored) ||
         std::ranges::any_of(kIgnoredBegins, [&](auto begin) { return key.starts_with(begin); }) ||
         std::ranges::any_of(kIgnoredEnds, [&](auto end) { return key.ends_with(end); });
}

const json* ModelConfigReader::find(std::string_view key) {
  known_.emplace(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<std::int32_t> ModelConfigReader::integer(std::string_view key) {
  if (find(key) == nullptr) return std::nullopt;
  return integer_at(object_, key);
}

std::int32_t ModelConfigReader::required(std::string_view key) {
  const std::optional<std::int32_t> value = integer(key);
  CONTEXTILE_CHECK(value, "{}: expected a value, found none", key);
  return *value;
}

bool ModelConfigReader::boolean_or(std::string_view key, bool otherwise) {
  const json* value = find(key);
  if (value == nullptr) return otherwise;
  CONTEXTILE_CHECK(value->is_boolean(), "{}: expected true or false, found {}", key,
                   quote(value->dump()));
  return value->get<bool>();
}

std::string ModelConfigReader::text(std::string_view key) {
  const json* value = find(key);
  if (value == nullptr) return "";
  CONTEXTILE_CHECK(value->is_string(), "{}: expected text, found {}", key, quote(value->dump()));
  return value->get<std::string>();
}

void ModelConfigReader::refuse_others(std::string_view what) const {
  constexpr std::size_t kMostNamed = 8;
  std::vector<std::string> others;
  for (const auto& [key, value] : object_.items()) {
    if (value.is_null() || known_.contains(key) || changes_nothing(key)) continue;
    if (others.size() > kMostNamed) break;
    others.push_back(others.size() < kMostNamed ? quote(key) : "others");
  }
  CONTEXTILE_CHECK(others.empty(),
                   "expected only keys of {} whose effect on time and memory is known, found {}",
                   what, fmt::join(others, ", "));
}

}  // namespace contextile
