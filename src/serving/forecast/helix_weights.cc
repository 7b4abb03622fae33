#include "serving/forecast/helix_weights.h"

#include <cmath>

namespace contextile {
namespace {

double ffn_elements(const HelixModel& model, std::int32_t ffn) {
  return static_cast<double>(model.shape.ffn_matrices()) * model.shape.hidden * ffn;
}

// Devices that share the output projection.
std::int32_t output_devices(const HelixLayout& layout) {
  return layout.dp > 1 ? layout.tpa : layout.ffn_devices();
}

// Matrices of attention on a device. The latent is read without expanding it: queries go through
// the key half of the expansion, outputs through the value half once they are complete.
void add_latent_shares(const HelixModel& model, const HelixLayout& layout, LayerShares& shares) {
  const LatentAttention& latent = *model.latent;
  const double hidden = model.shape.hidden;
  const double heads = model.shape.q_heads;
  const double query_head = std::int64_t{latent.query_rank} * (latent.nope_dim + latent.rope_dim) +
                            std::int64_t{latent.kv_rank} * latent.nope_dim;
  const double output_head = latent.value_dim * (hidden + static_cast<double>(latent.kv_rank));
  shares.before_attention = hidden * latent.query_rank +
                            hidden * (latent.kv_rank + latent.rope_dim) +
                            heads * query_head / layout.tpa;
  shares.output = heads * output_head / output_devices(layout);
}

}  // namespace

std::int64_t kv_elements(const HelixModel& model) {
  if (model.latent) return std::int64_t{model.latent->kv_rank} + model.latent->rope_dim;
  return 2 * std::int64_t{model.shape.head_dim};
}

std::int64_t partial_elements(const HelixModel& model) {
  return model.latent ? model.latent->kv_rank : model.shape.head_dim;
}

std::int32_t kv_heads_of_device(const HelixModel& model, const HelixLayout& layout) {
  return (model.shape.kv_heads + layout.tpa - 1) / layout.tpa;
}

LayerShares layer_shares(const HelixModel& model, const HelixLayout& layout) {
  LayerShares shares;
  if (model.latent) {
    add_latent_shares(model, layout, shares);
  } else {
    const double hidden = model.shape.hidden;
    const double queries = hidden * model.shape.q_heads * model.shape.head_dim;
    shares.before_attention = queries / layout.tpa +
                              2 * hidden * model.shape.head_dim * kv_heads_of_device(model, layout);
    shares.output = queries / output_devices(layout);
  }
  shares.dense = ffn_elements(model, model.shape.ffn) / layout.ffn_devices();
  if (model.experts) {
    const double expert = ffn_elements(model, model.experts->ffn);
    shares.shared = model.experts->shared * expert / layout.ffn_devices();
    shares.expert = expert / layout.tpf;
  }
  return shares;
}

std::int32_t num_dense_layers(const HelixModel& model) {
  return model.experts ? model.experts->dense_layers : model.shape.layers;
}

double head_share(const HelixModel& model, const HelixLayout& layout) {
  return static_cast<double>(model.shape.vocabulary) * model.shape.hidden / layout.ffn_devices();
}

std::int64_t num_weights(const HelixModel& model) {
  check_helix_model(model);
  const LayerShares all = layer_shares(model, {});
  const std::int32_t dense = num_dense_layers(model);
  const double routed = model.experts ? model.experts->routed * all.expert : 0;
  return std::llround(model.shape.layers * (all.before_attention + all.output) + dense * all.dense +
                      (model.shape.layers - dense) * (all.shared + routed) +
                      2 * head_share(model, {}));
}

}  // namespace contextile
