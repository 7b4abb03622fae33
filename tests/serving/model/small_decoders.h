// Small models with random weights, and prompts for them.
#pragma once

#include <cstdint>
#include <vector>

#include "contextile/serving/decoder_model.h"

namespace contextile {

inline DecoderConfig small() {
  DecoderConfig config;
  config.vocab_size = 67;
  config.hidden_size = 48;
  config.num_layers = 3;
  config.q_heads = 8;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.ffn_size = 50;
  return config;
}

// As gpt-oss: windows with sinks, and experts with biases and clamped gates.
inline DecoderConfig small_with_sinks() {
  DecoderConfig config = small();
  config.windows = {6, 0, 6};
  config.sinks = true;
  config.qkv_bias = true;
  config.o_bias = true;
  config.experts = ExpertsConfig{.num_experts = 5, .top_k = 2, .ffn_size = 22};
  config.experts->weights = ExpertsConfig::Weights::kChosenSoftmax;
  config.experts->norm_weights = false;
  config.experts->files = ExpertsConfig::Files::kGptOss;
  config.experts->clamped = {1.702, 0.5};
  return config;
}

// As DeepSeek-V3: latent keys, groups of experts, and one for all tokens.
inline DecoderConfig small_with_latent() {
  DecoderConfig config = small();
  config.head_dim = 14;
  config.kv_heads = 1;
  config.latent = LatentConfig{.q_rank = 20, .kv_rank = 24, .rope_dim = 6, .value_dim = 10};
  config.rope.interleaved = true;
  config.scale = 0.3;
  config.experts = ExpertsConfig{.num_experts = 12, .top_k = 3, .ffn_size = 18, .shared_size = 26};
  config.experts->weights = ExpertsConfig::Weights::kSigmoid;
  config.experts->weight_factor = 1.5;
  config.experts->num_groups = 4;
  config.experts->top_groups = 2;
  config.dense_layers = {0};
  return config;
}

// As Qwen3-MoE and DeepSeek-V2, without norms of experts' weights.
inline DecoderConfig small_with_experts() {
  DecoderConfig config = small();
  config.qk_norm = true;
  config.experts = ExpertsConfig{.num_experts = 6, .top_k = 2, .ffn_size = 30};
  config.experts->norm_weights = false;
  config.experts->num_groups = 3;
  config.experts->top_groups = 2;
  config.dense_layers = {1};
  return config;
}

// A config with every part that some family has.
inline std::vector<DecoderConfig> configs() {
  std::vector<DecoderConfig> all(3, small());
  all[1].windows = {0, 5};
  all[1].qkv_bias = true;
  all[1].o_bias = true;
  all[1].q_heads = 14;
  all[2].qk_norm = true;
  all[2].tied_embeddings = true;
  all[2].windows = {7, 7, 7};
  all[2].kv_heads = 8;
  all.push_back(small_with_experts());
  all.push_back(small_with_sinks());
  all.push_back(small_with_latent());
  all.push_back(small_with_latent());
  all.back().latent->q_rank = 0;
  all.back().experts.reset();
  all.back().rope.interleaved = false;
  return all;
}

inline std::vector<std::int32_t> prompt(std::int64_t length, std::int32_t vocab_size) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < length; ++i) {
    tokens.push_back(static_cast<std::int32_t>((i * i * 31 + 7 * i + 3) % vocab_size));
  }
  return tokens;
}

}  // namespace contextile
