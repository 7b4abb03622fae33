#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/check.h"
#include "contextile/serving/decoder_model.h"

namespace contextile {

namespace {

constexpr std::int32_t kMost = 1 << 24;

void check_size(std::string_view name, std::int64_t value) {
  CONTEXTILE_CHECK(value >= 1 && value <= kMost, "model, {}: expected 1 to {}, found {}", name,
                   kMost, value);
}

void check_experts(const ExpertsConfig& experts) {
  check_size("num_experts", experts.num_experts);
  check_size("expert ffn_size", experts.ffn_size);
  CONTEXTILE_CHECK(experts.shared_size >= 0, "model, shared_size: expected 0 and more, found {}",
                   experts.shared_size);
  CONTEXTILE_CHECK(experts.num_groups >= 1 && experts.num_experts % experts.num_groups == 0,
                   "model, groups of experts: expected a divisor of {} experts, found {}",
                   experts.num_experts, experts.num_groups);
  const std::int32_t of_group = experts.num_experts / experts.num_groups;
  CONTEXTILE_CHECK(experts.top_groups >= 1 && experts.top_groups <= experts.num_groups,
                   "model, chosen groups of experts: expected 1 to {}, found {}",
                   experts.num_groups, experts.top_groups);
  CONTEXTILE_CHECK(experts.weights != ExpertsConfig::Weights::kSigmoid || of_group >= 2,
                   "model, groups of experts: expected at least 2 experts in each, found {}",
                   of_group);
  CONTEXTILE_CHECK(experts.top_k >= 1 && experts.top_k <= experts.top_groups * of_group,
                   "model, experts of a token: expected 1 to {}, found {}",
                   experts.top_groups * of_group, experts.top_k);
}

void check_latent(const DecoderConfig& config) {
  const LatentConfig& latent = *config.latent;
  check_size("kv_rank", latent.kv_rank);
  check_size("rope_dim", latent.rope_dim);
  check_size("value_dim", latent.value_dim);
  CONTEXTILE_CHECK(latent.q_rank >= 0, "model, q_rank: expected 0 and more, found {}",
                   latent.q_rank);
  CONTEXTILE_CHECK(latent.rope_dim < config.head_dim,
                   "model, rope_dim: expected less than the {} elements of a query, found {}",
                   config.head_dim, latent.rope_dim);
  CONTEXTILE_CHECK(config.kv_heads == 1, "model, kv_heads: expected 1 with latent keys, found {}",
                   config.kv_heads);
  CONTEXTILE_CHECK(!config.sinks && !config.qk_norm && !config.qkv_bias && !config.o_bias,
                   "model: expected latent keys without sinks, biases and norms of heads, found "
                   "some");
}

}  // namespace

void check_decoder_config(const DecoderConfig& config) {
  check_size("vocab_size", config.vocab_size);
  check_size("hidden_size", config.hidden_size);
  check_size("num_layers", config.num_layers);
  check_size("q_heads", config.q_heads);
  check_size("kv_heads", config.kv_heads);
  check_size("head_dim", config.head_dim);
  check_size("ffn_size", config.ffn_size);
  CONTEXTILE_CHECK(config.q_heads % config.kv_heads == 0,
                   "model, kv_heads: expected a divisor of {} query heads, found {}",
                   config.q_heads, config.kv_heads);
  if (config.experts) check_experts(*config.experts);
  if (config.latent) check_latent(config);
  CONTEXTILE_CHECK(config.rope_dim() % 2 == 0,
                   "model, {}: expected an even number for rotary embedding, found {}",
                   config.latent ? "rope_dim" : "head_dim", config.rope_dim());
  CONTEXTILE_CHECK(config.windows.size() <= static_cast<std::size_t>(config.num_layers),
                   "model, windows: expected at most {}, found {}", config.num_layers,
                   config.windows.size());
  for (const std::int32_t window : config.windows) {
    CONTEXTILE_CHECK(window >= 0, "model, windows: expected 0 or more tokens, found {}", window);
  }
  CONTEXTILE_CHECK(config.max_length >= 1, "model, max_length: expected at least 1, found {}",
                   config.max_length);
}

bool DecoderConfig::has_experts(std::int32_t layer) const {
  return experts && std::ranges::find(dense_layers, layer) == dense_layers.end();
}

double DecoderConfig::score_scale() const {
  return scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim));
}

std::int64_t cache_window(const DecoderConfig& config) {
  std::int64_t most = 0;
  for (std::int32_t i = 0; i < config.num_layers; ++i) {
    if (config.window(i) == 0) return 0;
    most = std::max<std::int64_t>(most, config.window(i));
  }
  return most;
}

std::int64_t cache_window(const DecoderConfig& config, const DecoderConfig& other) {
  const std::int64_t a = cache_window(config);
  const std::int64_t b = cache_window(other);
  return a == 0 || b == 0 ? 0 : std::max(a, b);
}

namespace {

std::int64_t attention_parameters(const DecoderConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t q = std::int64_t{config.q_heads} * config.head_dim;
  const std::int64_t o = std::int64_t{config.q_heads} * config.output_dim();
  if (config.latent) {
    const LatentConfig& latent = *config.latent;
    const std::int64_t queries = latent.q_rank == 0 ? hidden * q : latent.q_rank * (hidden + q + 1);
    const std::int64_t b = config.q_heads * (config.head_dim - latent.rope_dim + latent.value_dim);
    return queries + hidden * (latent.kv_rank + latent.rope_dim) + latent.kv_rank * (b + 1) +
           hidden * o;
  }
  const std::int64_t kv = std::int64_t{config.kv_heads} * config.head_dim;
  std::int64_t count = hidden * (2 * q + 2 * kv);
  if (config.qkv_bias) count += q + 2 * kv;
  if (config.o_bias) count += hidden;
  if (config.qk_norm) count += 2 * config.head_dim;
  if (config.sinks) count += config.q_heads;
  return count;
}

// Returns those of a layer.
std::int64_t expert_parameters(const ExpertsConfig& experts, std::int64_t hidden) {
  std::int64_t count = experts.num_experts * (hidden + 3 * hidden * experts.ffn_size);
  if (experts.files == ExpertsConfig::Files::kGptOss) {
    count += experts.num_experts * (1 + 2 * experts.ffn_size + hidden);
  }
  if (experts.weights == ExpertsConfig::Weights::kSigmoid) count += experts.num_experts;
  return count;
}

}  // namespace

std::int64_t num_parameters(const DecoderConfig& config) {
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t tables = config.tied_embeddings ? 1 : 2;
  std::int64_t count = tables * config.vocab_size * hidden + hidden;
  for (std::int32_t i = 0; i < config.num_layers; ++i) {
    count += 2 * hidden + attention_parameters(config) + 3 * hidden * config.dense_size(i);
  }
  return count + num_expert_parameters(config);
}

std::int64_t num_expert_parameters(const DecoderConfig& config) {
  std::int64_t count = 0;
  for (std::int32_t i = 0; i < config.num_layers; ++i) {
    if (config.has_experts(i)) count += expert_parameters(*config.experts, config.hidden_size);
  }
  return count;
}

std::int64_t kv_bytes_per_token(const DecoderConfig& config, KvDtype dtype, std::int64_t kv_heads) {
  const std::int64_t heads = kv_heads > 0 ? kv_heads : config.kv_heads;
  const std::int64_t row = config.latent ? config.key_dim() : 2 * config.head_dim;
  return config.num_layers * heads * row * bytes_per_element(dtype);
}

}  // namespace contextile
