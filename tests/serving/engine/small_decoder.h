// A decoder that engines of tests run.
#pragma once

#include <cstdint>

#include "contextile/serving/decoder_model.h"

namespace contextile {

// Two layers, the second with a window of 24 tokens.
inline DecoderConfig small_decoder(std::int32_t vocab_size = 61) {
  DecoderConfig config;
  config.vocab_size = vocab_size;
  config.hidden_size = 32;
  config.num_layers = 2;
  config.q_heads = 8;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.ffn_size = 40;
  config.windows = {0, 24};
  config.max_length = 400;
  return config;
}

}  // namespace contextile
