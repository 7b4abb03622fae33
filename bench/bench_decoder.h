// The decoder that benchmarks of serving run.
#pragma once

#include "contextile/serving/decoder_model.h"

namespace contextile::bench {

inline DecoderConfig bench_decoder() {
  DecoderConfig config;
  config.hidden_size = 512;
  config.q_heads = 16;
  config.kv_heads = 4;
  config.head_dim = 64;
  config.ffn_size = 1408;
  return config;
}

}  // namespace contextile::bench
