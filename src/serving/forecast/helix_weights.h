// The number of elements of a model's matrices that a device reads and holds.
#pragma once

#include <cstdint>

#include "contextile/serving/helix.h"

namespace contextile {

// Cached elements of a token, layer and KV head, and those of a query head's partial output.
[[nodiscard]] std::int64_t kv_elements(const HelixModel& model);
[[nodiscard]] std::int64_t partial_elements(const HelixModel& model);
// KV heads that every device of a layout holds: ⌈K/TPA⌉.
[[nodiscard]] std::int32_t kv_heads_of_device(const HelixModel& model, const HelixLayout& layout);

// Elements of one layer's matrices on a device: those applied before attention, the output
// projection, a dense feed-forward or the shared experts, one routed expert.
struct LayerShares {
  double before_attention = 0;
  double output = 0;
  double dense = 0;
  double shared = 0;
  double expert = 0;
};
[[nodiscard]] LayerShares layer_shares(const HelixModel& model, const HelixLayout& layout);
// Layers that have a dense feed-forward, the others have experts.
[[nodiscard]] std::int32_t num_dense_layers(const HelixModel& model);
// Elements of the matrix of logits; the embedding has as many, of which a step reads few.
[[nodiscard]] double head_share(const HelixModel& model, const HelixLayout& layout);

}  // namespace contextile
