// Models: the compute and memory of a transformer outside of attention.
//
//   const ModelSpec model = load_model("llama-3-8b");
//   const double us = linear_us_per_token(model, load_cluster("dgx-h200:1x8"));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/workload.h"

namespace contextile {

// A decoder-only transformer. Embedding and head have weights of their own.
struct ModelSpec {
  std::string name = "custom";
  std::int32_t layers = 32;
  std::int32_t hidden = 4096;
  std::int32_t q_heads = 32;
  std::int32_t kv_heads = 8;  // divides q_heads
  std::int32_t head_dim = 128;
  std::int32_t ffn = 14336;
  std::int32_t vocabulary = 128256;
  bool gated_ffn = true;  // three matrices of hidden x ffn (SwiGLU), otherwise two

  [[nodiscard]] std::int32_t ffn_matrices() const { return gated_ffn ? 3 : 2; }
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};
void check_model(const ModelSpec& model);  // throws InvalidArgument

// Parameters, counted once.
struct ModelWeights {
  std::int64_t layer = 0;  // of one layer, norms included
  std::int64_t embedding = 0;
  std::int64_t head = 0;  // with the last norm

  [[nodiscard]] std::int64_t total(std::int32_t layers) const {
    return embedding + layers * layer + head;
  }
};
[[nodiscard]] ModelWeights weights_of(const ModelSpec& model);

// Forward FLOPs of one token in matrix products other than attention's: 2 per weight. Backward
// takes twice as many.
struct LinearFlops {
  double before_attention = 0;  // of one layer: Q, K, V
  double after_attention = 0;   // of one layer: output projection, feed-forward
  double head = 0;              // logits

  [[nodiscard]] double layer() const { return before_attention + after_attention; }
};
[[nodiscard]] LinearFlops linear_flops_of(const ModelSpec& model);

// Returns the shape with the heads of one of `tp` tensor-parallel ranks, in bf16. Throws
// InvalidArgument unless tp divides query and KV heads.
[[nodiscard]] AttentionShape attention_shape_of(const ModelSpec& model, std::int32_t tp);

struct ModelPreset {
  std::string_view description;  // the model, and the source of its numbers
  ModelSpec model;
};
[[nodiscard]] const std::vector<ModelPreset>& model_presets();

// Loads a model from a preset's name or the path of a JSON file (any text that ends in .json or
// contains a '/'). Throws InvalidArgument (an unknown preset: the message lists the presets, with a
// "did you mean") or IoError.
[[nodiscard]] ModelSpec load_model(std::string_view text);
// Parses one JSON object with the keys name, layers, hidden, heads, kv_heads, head_dim, ffn,
// vocabulary, gated_ffn. All except name and gated_ffn are required; unknown ones are errors.
// `where` names the source in messages.
[[nodiscard]] ModelSpec parse_model_json(std::string_view text, std::string_view where);

// ----------------------------------------------------------------------------------- linear layers

// Share of Cluster::peak_tflops that everything outside attention reaches (DistCA, appendix A).
inline constexpr double kLinearMfu = 0.5;

// Returns the peak rate that MFUs are relative to: Cluster::peak_tflops, or
// Cluster::attention_tflops if it is unknown.
[[nodiscard]] double peak_tflops_of(const Cluster& cluster);

// Returns the time per token of the matrix products of one layer outside attention, forward, µs on
// one device that reaches the share `mfu` of its peak.
[[nodiscard]] double linear_us_per_token(const ModelSpec& model, const Cluster& cluster,
                                         double mfu = kLinearMfu);

// Returns a guess of the same where only attention's shape is known: a layer as wide as all query
// heads, with the feed-forward of Llama 3, 3.5 times as wide.
[[nodiscard]] double guessed_linear_us_per_token(const AttentionShape& shape,
                                                 const Cluster& cluster);

}  // namespace contextile
