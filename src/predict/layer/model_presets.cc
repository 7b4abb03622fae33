// Models by name, with the sources of their numbers.
#include <algorithm>
#include <iterator>
#include <vector>

#include "contextile/advanced/model.h"

namespace contextile {

namespace {

std::vector<ModelPreset> dense_presets() {
  return {
      {"Llama 3 8B (The Llama 3 Herd of Models, table 3)",
       {.name = "llama-3-8b",
        .layers = 32,
        .hidden = 4096,
        .q_heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
        .ffn = 14336,
        .vocabulary = 128256}},
      {"the 34B model of the DistCA paper (hidden 8192, KV 2048, FFN 22016); vocabulary of Llama 2",
       {.name = "llama-34b",
        .layers = 48,
        .hidden = 8192,
        .q_heads = 64,
        .kv_heads = 16,
        .head_dim = 128,
        .ffn = 22016,
        .vocabulary = 32000}},
      {"Llama 3 70B (The Llama 3 Herd of Models, table 3)",
       {.name = "llama-3-70b",
        .layers = 80,
        .hidden = 8192,
        .q_heads = 64,
        .kv_heads = 8,
        .head_dim = 128,
        .ffn = 28672,
        .vocabulary = 128256}},
      {"Llama 3 405B (The Llama 3 Herd of Models, table 3)",
       {.name = "llama-3-405b",
        .layers = 126,
        .hidden = 16384,
        .q_heads = 128,
        .kv_heads = 8,
        .head_dim = 128,
        .ffn = 53248,
        .vocabulary = 128256}},
      {"GPT 8B of the DCP paper (section 7.2: 32 layers, hidden 4096, 8 KV groups, FFN 14336); "
       "gated FFN and 128256 tokens assumed, which give 8.0e9 weights",
       {.name = "gpt-8b",
        .layers = 32,
        .hidden = 4096,
        .q_heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
        .ffn = 14336,
        .vocabulary = 128256}},
  };
}

std::vector<ModelPreset> expert_presets() {
  return {
      {"Mixtral 8x7B (Mixtral of Experts, table 1)",
       {.name = "mixtral-8x7b",
        .layers = 32,
        .hidden = 4096,
        .q_heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
        .ffn = 0,
        .vocabulary = 32000,
        .experts = {.experts = 8, .per_token = 2, .ffn = 14336}}},
      {"Qwen3 30B-A3B (Qwen3 technical report, table 2, and its config.json)",
       {.name = "qwen3-30b-a3b",
        .layers = 48,
        .hidden = 2048,
        .q_heads = 32,
        .kv_heads = 4,
        .head_dim = 128,
        .ffn = 0,
        .vocabulary = 151936,
        .experts = {.experts = 128, .per_token = 8, .ffn = 768}}},
      {"DeepSeek-V3 (technical report, section 4.2, and its config.json), without the layer that "
       "predicts a second token",
       {.name = "deepseek-v3",
        .layers = 61,
        .hidden = 7168,
        .q_heads = 128,
        .kv_heads = 128,
        .head_dim = 192,
        .ffn = 18432,
        .vocabulary = 129280,
        .value_dim = 128,
        .experts =
            {.experts = 256, .per_token = 8, .ffn = 2048, .shared_ffn = 2048, .dense_layers = 3},
        .latent = {.q_rank = 1536, .kv_rank = 512, .rope_dim = 64}}},
  };
}

std::vector<ModelPreset> all_presets() {
  std::vector<ModelPreset> presets = dense_presets();
  std::ranges::move(expert_presets(), std::back_inserter(presets));
  return presets;
}

}  // namespace

const std::vector<ModelPreset>& model_presets() {
  static const std::vector<ModelPreset> kPresets = all_presets();
  return kPresets;
}

}  // namespace contextile
