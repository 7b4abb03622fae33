#include "contextile/advanced/model.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "base/quote.h"

namespace contextile {
namespace {

// One multiplication and one addition per weight and token.
constexpr double kFlopsPerWeight = 2;

// Products of two sizes and the layers stay in 64 bits. See check_model.
constexpr std::int32_t kMostSize = 1 << 24;
constexpr std::int32_t kMostLayers = 1 << 12;
constexpr std::int32_t kMostLatent = 1 << 20;
constexpr std::int32_t kMostExpertElements = 1 << 22;

// Weights of the projections to queries, keys and values. With latent attention each goes through
// its low rank; rotary elements of keys skip it.
std::int64_t input_weights(const ModelSpec& model) {
  const std::int64_t hidden = model.hidden;
  const std::int64_t queries = std::int64_t{model.q_heads} * model.head_dim;
  const LatentAttentionSizes& latent = model.latent;
  const std::int64_t of_queries =
      latent.q_rank > 0 ? latent.q_rank * (hidden + queries) : hidden * queries;
  if (latent.kv_rank == 0) {
    return of_queries + hidden * model.kv_heads * (model.head_dim + model.value_elements());
  }
  const std::int64_t from_latent =
      std::int64_t{model.kv_heads} * (model.head_dim - latent.rope_dim + model.value_elements());
  return of_queries + hidden * (latent.kv_rank + latent.rope_dim) + latent.kv_rank * from_latent;
}
std::int64_t output_weights(const ModelSpec& model) {
  return std::int64_t{model.hidden} * model.q_heads * model.value_elements();
}
// Weights of a feed-forward whose inner size is `ffn`.
std::int64_t ffn_weights(const ModelSpec& model, std::int64_t ffn) {
  return std::int64_t{model.ffn_matrices()} * model.hidden * ffn;
}
std::int64_t router_weights(const ModelSpec& model) {
  return std::int64_t{model.hidden} * model.experts.experts;
}
// Weights of the embedding, and of the matrix that computes logits.
std::int64_t vocabulary_weights(const ModelSpec& model) {
  return std::int64_t{model.vocabulary} * model.hidden;
}

struct Size {
  const char* key;
  std::int32_t value;
  std::int32_t least;
  std::int32_t most;
};

void check_sizes(const ModelSpec& model, std::span<const Size> sizes) {
  for (const auto& [key, value, least, most] : sizes) {
    CONTEXTILE_CHECK(value >= least && value <= most, "model {}: {}: expected {} to {}, found {}",
                     quote(model.name), key, least, most, value);
  }
}

void check_experts(const ModelSpec& model) {
  const ModelExperts& experts = model.experts;
  if (!model.has_experts()) {
    CONTEXTILE_CHECK(experts == ModelExperts{},
                     "model {}: expected sizes of experts only with experts, found {} experts",
                     quote(model.name), experts.experts);
    return;
  }
  const Size sizes[] = {{"experts", experts.experts, 1, kMostExpertElements},
                        {"experts_per_token", experts.per_token, 1, experts.experts},
                        {"expert_ffn", experts.ffn, 1, kMostExpertElements},
                        {"shared_expert_ffn", experts.shared_ffn, 0, kMostExpertElements},
                        {"dense_layers", experts.dense_layers, 0, model.layers - 1}};
  check_sizes(model, sizes);
  const std::int64_t elements = std::int64_t{experts.experts} * experts.ffn;
  CONTEXTILE_CHECK(elements <= kMostExpertElements,
                   "model {}: expected at most {} elements of all experts of a layer, found {}",
                   quote(model.name), kMostExpertElements, elements);
}

void check_latent(const ModelSpec& model) {
  const LatentAttentionSizes& latent = model.latent;
  if (latent.kv_rank == 0) {
    CONTEXTILE_CHECK(latent == LatentAttentionSizes{},
                     "model {}: expected sizes of latent attention only with a kv_rank, found 0",
                     quote(model.name));
    return;
  }
  const Size sizes[] = {{"q_rank", latent.q_rank, 0, kMostLatent},
                        {"kv_rank", latent.kv_rank, 1, kMostLatent},
                        {"rope_dim", latent.rope_dim, 0, model.head_dim - 1}};
  check_sizes(model, sizes);
}

}  // namespace

void check_model(const ModelSpec& model) {
  // A layer has at most 2^48 weights for each of queries, keys, values and the output, and 3 · 2^48
  // in a feed-forward, or 3 · 2^46 in each of its routed and its shared experts. Latent projections
  // are smaller. With 2^12 layers these are at most 7 · 2^60 weights, which leaves room for
  // embedding and head below 2^63.
  const bool has_ffn = !model.has_experts() || model.experts.dense_layers > 0;
  const Size sizes[] = {{"layers", model.layers, 1, kMostLayers},
                        {"hidden", model.hidden, 1, kMostSize},
                        {"heads", model.q_heads, 1, kMostSize},
                        {"kv_heads", model.kv_heads, 1, kMostSize},
                        {"head_dim", model.head_dim, 1, kMostSize},
                        {"ffn", model.ffn, has_ffn ? 1 : 0, kMostSize},
                        {"vocabulary", model.vocabulary, 1, kMostSize},
                        {"value_dim", model.value_dim, 0, kMostSize}};
  check_sizes(model, sizes);
  // The sizes are in range from here on, so they may be multiplied and divided by.
  const std::int64_t widest =
      std::int64_t{model.q_heads} * std::max(model.head_dim, model.value_elements());
  CONTEXTILE_CHECK(widest <= kMostSize,
                   "model {}: expected at most {} elements of all query heads, found {}",
                   quote(model.name), kMostSize, widest);
  CONTEXTILE_CHECK(model.q_heads % model.kv_heads == 0,
                   "model {}: expected KV heads that divide {} query heads, found {}",
                   quote(model.name), model.q_heads, model.kv_heads);
  check_experts(model);
  check_latent(model);
}

ModelWeights weights_of(const ModelSpec& model) {
  check_model(model);
  const ModelExperts& experts = model.experts;
  const std::int64_t norms = 2 * std::int64_t{model.hidden};
  const std::int64_t attention = input_weights(model) + output_weights(model);
  ModelWeights weights;
  weights.layer = attention + norms + ffn_weights(model, model.ffn);
  weights.embedding = vocabulary_weights(model);
  weights.head = model.hidden + (model.tied_embeddings ? 0 : vocabulary_weights(model));
  weights.expert_layers = model.expert_layers();
  if (!model.has_experts()) return weights;
  weights.expert_layer =
      attention + norms + router_weights(model) + ffn_weights(model, experts.shared_ffn);
  weights.active_experts = experts.per_token * ffn_weights(model, experts.ffn);
  weights.experts = experts.experts * ffn_weights(model, experts.ffn);
  return weights;
}

// Counts matrix products only. Norms, activations and rotary embedding are omitted, and the lookup
// of embeddings takes no FLOPs.
LinearFlops linear_flops_of(const ModelSpec& model) {
  check_model(model);
  const auto flops = [](std::int64_t weights) {
    return kFlopsPerWeight * static_cast<double>(weights);
  };
  const ModelExperts& experts = model.experts;
  LinearFlops result;
  result.before_attention = flops(input_weights(model));
  result.after_attention = flops(output_weights(model) + ffn_weights(model, model.ffn));
  result.head = flops(vocabulary_weights(model));
  if (!model.has_experts()) return result;
  result.after_attention_experts =
      flops(output_weights(model) + router_weights(model) + ffn_weights(model, experts.shared_ffn) +
            experts.per_token * ffn_weights(model, experts.ffn));
  result.expert_share = static_cast<double>(model.expert_layers()) / model.layers;
  return result;
}

double peak_tflops_of(const Cluster& cluster) {
  return cluster.peak_tflops > 0 ? cluster.peak_tflops : cluster.attention_tflops;
}

// FLOPs / (10^12 · TFLOP/s · mfu) seconds are FLOPs / (10^6 · TFLOP/s · mfu) microseconds.
double linear_us_per_token(const ModelSpec& model, const Cluster& cluster, double mfu) {
  return linear_flops_of(model).layer() / (1e6 * peak_tflops_of(cluster) * mfu);
}

// Not by a ModelSpec, whose check refuses shapes that attention allows.
double guessed_linear_us_per_token(const AttentionShape& shape, const Cluster& cluster) {
  constexpr double kGatedFfnMatrices = 3;
  constexpr double kFfnOverHidden = 3.5;
  const double hidden = static_cast<double>(shape.q_heads) * shape.head_dim;
  const double keys = static_cast<double>(shape.kv_heads) * shape.head_dim;
  const double weights =
      hidden * (2 * hidden + 2 * keys + kGatedFfnMatrices * kFfnOverHidden * hidden);
  return kFlopsPerWeight * weights / (1e6 * peak_tflops_of(cluster) * kLinearMfu);
}

// A tensor-parallel rank has whole KV heads and the query heads that read them, so tp must divide
// both numbers.
AttentionShape attention_shape_of(const ModelSpec& model, std::int32_t tp) {
  check_model(model);
  CONTEXTILE_CHECK(tp >= 1 && model.q_heads % tp == 0 && model.kv_heads % tp == 0,
                   "model {}: expected a tp that divides {} query heads and {} KV heads, found {}",
                   quote(model.name), model.q_heads, model.kv_heads, tp);
  AttentionShape shape;
  shape.q_heads = model.q_heads / tp;
  shape.kv_heads = model.kv_heads / tp;
  shape.head_dim = model.head_dim;
  shape.value_dim = model.value_elements();
  shape.dtype = Dtype::kBf16;
  return shape;
}

}  // namespace contextile
