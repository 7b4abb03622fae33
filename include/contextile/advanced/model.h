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

// Experts of the feed-forward of a layer, of which every token visits a few (mixture of experts).
// An expert has as many matrices as ModelSpec::ffn_matrices().
struct ModelExperts {
  std::int32_t experts = 0;     // routed experts of a layer; 0: no layer has experts
  std::int32_t per_token = 0;   // routed experts that a token visits
  std::int32_t ffn = 0;         // size of one routed expert
  std::int32_t shared_ffn = 0;  // size of the experts that every token visits, together; 0: none
  // Layers without experts, which come first. Their feed-forward has the size ModelSpec::ffn.
  std::int32_t dense_layers = 0;

  friend bool operator==(const ModelExperts&, const ModelExperts&) = default;
};

// Multi-head latent attention (DeepSeek-V2, section 2.1): queries, and keys with values, are
// projected to a vector of low rank, and from there to all heads.
struct LatentAttentionSizes {
  std::int32_t q_rank = 0;    // 0: queries are projected at once
  std::int32_t kv_rank = 0;   // 0: the model has no latent attention
  std::int32_t rope_dim = 0;  // elements of a key that all heads share; below ModelSpec::head_dim

  friend bool operator==(const LatentAttentionSizes&, const LatentAttentionSizes&) = default;
};

// A decoder-only transformer.
struct ModelSpec {
  std::string name = "custom";
  std::int32_t layers = 32;
  std::int32_t hidden = 4096;
  std::int32_t q_heads = 32;
  std::int32_t kv_heads = 8;    // divides q_heads
  std::int32_t head_dim = 128;  // of queries and keys; of values unless value_dim says otherwise
  std::int32_t ffn = 14336;     // of layers without experts; unused if there are none
  std::int32_t vocabulary = 128256;
  bool gated_ffn = true;         // three matrices of hidden x ffn (SwiGLU), otherwise two
  std::int32_t value_dim = 0;    // of values and attention's output; 0: head_dim
  bool tied_embeddings = false;  // the embedding's matrix computes logits, too
  ModelExperts experts = {};
  LatentAttentionSizes latent = {};

  [[nodiscard]] std::int32_t ffn_matrices() const { return gated_ffn ? 3 : 2; }
  [[nodiscard]] std::int32_t value_elements() const { return value_dim > 0 ? value_dim : head_dim; }
  [[nodiscard]] bool has_experts() const { return experts.experts > 0; }
  [[nodiscard]] std::int32_t expert_layers() const {
    return has_experts() ? layers - experts.dense_layers : 0;
  }
  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};
void check_model(const ModelSpec& model);  // throws InvalidArgument

// Parameters, counted once. Biases, and norms other than two per layer and the last one, are not
// counted.
struct ModelWeights {
  std::int64_t layer = 0;           // of one layer without experts, norms included
  std::int64_t expert_layer = 0;    // of one layer with experts, except its routed experts
  std::int64_t experts = 0;         // all routed experts of one layer
  std::int64_t active_experts = 0;  // those that one token visits
  std::int64_t embedding = 0;
  std::int64_t head = 0;           // with the last norm; of tied embeddings the norm alone
  std::int32_t expert_layers = 0;  // layers of the model that have experts

  [[nodiscard]] std::int64_t total(std::int32_t layers) const {
    return all(layers, expert_layer + experts);
  }
  // Parameters that one token meets.
  [[nodiscard]] std::int64_t active(std::int32_t layers) const {
    return all(layers, expert_layer + active_experts);
  }

 private:
  [[nodiscard]] std::int64_t all(std::int32_t layers, std::int64_t with_experts) const {
    return embedding + (layers - expert_layers) * layer + expert_layers * with_experts + head;
  }
};
[[nodiscard]] ModelWeights weights_of(const ModelSpec& model);

// Forward FLOPs of one token in matrix products other than attention's: 2 per weight that the token
// meets. Backward takes twice as many.
struct LinearFlops {
  double before_attention = 0;  // of one layer: Q, K, V
  double after_attention = 0;   // of one layer without experts: output projection, feed-forward
  double after_attention_experts = 0;  // the same with experts: those that the token visits, router
  double head = 0;                     // logits
  double expert_share = 0;             // layers with experts, as a share of the model's

  // FLOPs after attention, on average over layers of which `share` have experts.
  [[nodiscard]] double after(double share) const {
    return (1 - share) * after_attention + share * after_attention_experts;
  }
  // FLOPs of a layer on average.
  [[nodiscard]] double layer() const { return before_attention + after(expert_share); }
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

// A model as its source describes it.
struct LoadedModel {
  ModelSpec model;
  // Masks of the model's layers, by the layers that use them; empty: the source names none. A
  // config.json with a window names all of its layers.
  std::vector<MaskUse> masks;
  // Parts of the model that predictions leave out, each with its key: "vision_config: …".
  std::vector<std::string> left_out;
};

// Loads a model from a preset's name, the path of a JSON file (any text that ends in .json or
// contains a '/'), or the path of a folder with a config.json (with a '/'). A file with a key
// model_type or architectures is a config.json of Hugging Face, see parse_model_config. Throws
// InvalidArgument (an unknown preset: the message lists the presets, with a "did you mean") or
// IoError.
[[nodiscard]] LoadedModel load_described_model(std::string_view text);
// The same without masks and what is left out: for callers that have attention from elsewhere.
[[nodiscard]] ModelSpec load_model(std::string_view text);

// Parses one JSON object with the keys name, layers, hidden, heads, kv_heads, head_dim, ffn,
// vocabulary, gated_ffn, value_dim, tied_embeddings, experts, experts_per_token, expert_ffn,
// shared_expert_ffn, dense_layers. Required are the sizes up to vocabulary; of a model with
// experts, experts_per_token and expert_ffn, and not ffn unless it has dense_layers. Unknown keys
// are errors. `where` names the source in messages.
[[nodiscard]] ModelSpec parse_model_json(std::string_view text, std::string_view where);

// Parses the config.json of a model of one of model_families(), or the text_config of a model of
// text and images. Keys that change neither time nor memory (of numerics, tokens, initialization,
// positions, losses) are ignored. Any other key that is unknown and not null is an error that names
// it. `where` names the source in messages. Linear in the text. Throws InvalidArgument.
[[nodiscard]] LoadedModel parse_model_config(std::string_view text, std::string_view where);
// The values of model_type that are known: "llama", "mixtral", …
[[nodiscard]] std::vector<std::string> model_families();

// ----------------------------------------------------------------------------------- linear layers

// Share of Cluster::peak_tflops that everything outside attention reaches (DistCA, appendix A).
inline constexpr double kLinearMfu = 0.5;

// Returns the peak rate that MFUs are relative to: Cluster::peak_tflops, or
// Cluster::attention_tflops if it is unknown.
[[nodiscard]] double peak_tflops_of(const Cluster& cluster);

// Returns the time per token of the matrix products of the mean layer outside attention, forward,
// µs on one device that reaches the share `mfu` of its peak.
[[nodiscard]] double linear_us_per_token(const ModelSpec& model, const Cluster& cluster,
                                         double mfu = kLinearMfu);

// Returns a guess of the same where only attention's shape is known: a layer as wide as all query
// heads, with the feed-forward of Llama 3, 3.5 times as wide.
[[nodiscard]] double guessed_linear_us_per_token(const AttentionShape& shape,
                                                 const Cluster& cluster);

}  // namespace contextile
