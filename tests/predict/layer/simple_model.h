// A model whose sums are easy to follow.
#pragma once

#include "contextile/advanced/training.h"

namespace contextile {

// 1e6 weights per matrix product: Q 4e6, K and V 2e6, output 4e6, FFN 3 x 8e6 weights per layer.
inline ModelSpec simple_model() {
  return {.name = "simple",
          .layers = 4,
          .hidden = 2000,
          .q_heads = 20,
          .kv_heads = 5,
          .head_dim = 100,
          .ffn = 4000,
          .vocabulary = 10000,
          .gated_ffn = true};
}

}  // namespace contextile
