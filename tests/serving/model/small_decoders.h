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
