#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/half.h"
#include "contextile/serving/decoder_model.h"
#include "serving/model/tensor_source.h"

namespace contextile {
namespace {

// Reads one rank's parts.
class WeightReader {
 public:
  WeightReader(const TensorSource& source, const DecoderConfig& config, const DecoderPart& part)
      : source_(source), config_(config), part_(part) {
    check_decoder_part(config, part);
  }

  [[nodiscard]] DecoderWeights read() const {
    DecoderWeights weights;
    weights.part = part_;
    weights.embeddings =
        matrix("model.embed_tokens.weight", config_.vocab_size, config_.hidden_size,
               all(config_.vocab_size), all(config_.hidden_size));
    for (std::int32_t i = 0; i < config_.num_layers; ++i) weights.layers.push_back(layer(i));
    weights.norm = vector("model.norm.weight", config_.hidden_size);
    // Files of models whose embeddings are tied have no second copy, whatever config.json says.
    const bool untied = source_.contains("lm_head.weight") && !config_.tied_embeddings;
    weights.logits =
        matrix(untied ? "lm_head.weight" : "model.embed_tokens.weight", config_.vocab_size,
               config_.hidden_size, part_.of(config_.vocab_size), all(config_.hidden_size));
    return weights;
  }

 private:
  static void check_finite(const std::string& name, std::span<const float> values) {
    for (const float value : values) {
      CONTEXTILE_CHECK(std::isfinite(value), "weights, {}: expected finite numbers, found {}", name,
                       value);
    }
  }
  [[nodiscard]] static Range all(std::int64_t count) { return {0, count}; }

  [[nodiscard]] WeightElements matrix(const std::string& name, std::int64_t rows,
                                      std::int64_t columns, Range row_range,
                                      Range column_range) const {
    const MatrixPart part = {name, rows, columns, row_range, column_range};
    const auto count = static_cast<std::size_t>(part.size());
    if (!source_.is_bf16(name)) {
      std::vector<float> values(count);
      source_.read(part, values);
      check_finite(name, values);
      return WeightElements(std::move(values));
    }
    std::vector<std::uint16_t> bits(count);
    source_.read_bf16(part, bits);
    for (const std::uint16_t element : bits) {
      const float value = bf16_to_float(element);
      check_finite(name, {&value, 1});
    }
    return WeightElements(std::move(bits));
  }
  [[nodiscard]] std::vector<float> vector(const std::string& name, std::int64_t size,
                                          Range range) const {
    const MatrixPart part = {name, size, 0, range, {0, 1}};
    std::vector<float> values(static_cast<std::size_t>(part.size()));
    source_.read(part, values);
    check_finite(name, values);
    return values;
  }
  [[nodiscard]] std::vector<float> vector(const std::string& name, std::int64_t size) const {
    return vector(name, size, all(size));
  }

  // Elements of heads.
  [[nodiscard]] Range elements(Range heads) const {
    return {heads.begin * config_.head_dim, heads.end * config_.head_dim};
  }

  [[nodiscard]] DecoderWeights::Layer layer(std::int32_t i) const {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t q_size = std::int64_t{config_.q_heads} * config_.head_dim;
    const std::int64_t kv_size = std::int64_t{config_.kv_heads} * config_.head_dim;
    const Range outputs = elements(part_.held(config_.q_heads));
    const Range queries = elements(part_.queries(config_.q_heads));
    const Range keys = elements(part_.kv_heads(config_.kv_heads));
    const Range inner = part_.held(config_.ffn_size);
    DecoderWeights::Layer layer;
    layer.attention_norm = vector(at + "input_layernorm.weight", hidden);
    layer.q = matrix(at + "self_attn.q_proj.weight", q_size, hidden, queries, all(hidden));
    layer.k = matrix(at + "self_attn.k_proj.weight", kv_size, hidden, keys, all(hidden));
    layer.v = matrix(at + "self_attn.v_proj.weight", kv_size, hidden, keys, all(hidden));
    layer.o = matrix(at + "self_attn.o_proj.weight", hidden, q_size, all(hidden), outputs);
    if (config_.qkv_bias) {
      layer.q_bias = vector(at + "self_attn.q_proj.bias", q_size, queries);
      layer.k_bias = vector(at + "self_attn.k_proj.bias", kv_size, keys);
      layer.v_bias = vector(at + "self_attn.v_proj.bias", kv_size, keys);
    }
    if (config_.o_bias) layer.o_bias = vector(at + "self_attn.o_proj.bias", hidden);
    if (config_.qk_norm) {
      layer.q_norm = vector(at + "self_attn.q_norm.weight", config_.head_dim);
      layer.k_norm = vector(at + "self_attn.k_norm.weight", config_.head_dim);
    }
    layer.ffn_norm = vector(at + "post_attention_layernorm.weight", hidden);
    layer.gate = matrix(at + "mlp.gate_proj.weight", config_.ffn_size, hidden, inner, all(hidden));
    layer.up = matrix(at + "mlp.up_proj.weight", config_.ffn_size, hidden, inner, all(hidden));
    layer.down = matrix(at + "mlp.down_proj.weight", hidden, config_.ffn_size, all(hidden), inner);
    return layer;
  }

  const TensorSource& source_;
  const DecoderConfig& config_;
  const DecoderPart& part_;
};

}  // namespace

std::int64_t WeightElements::size_bytes() const {
  return static_cast<std::int64_t>(f32_.size() * sizeof(float) +
                                   bf16_.size() * sizeof(std::uint16_t));
}

void WeightElements::read(std::size_t first, std::span<float> values) const {
  if (!is_bf16()) {
    std::copy_n(f32_.begin() + static_cast<std::ptrdiff_t>(first), values.size(), values.begin());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = bf16_to_float(bf16_[first + i]);
}

void WeightElements::set(std::size_t i, float value) {
  if (is_bf16()) {
    bf16_[i] = float_to_bf16(value);
  } else {
    f32_[i] = value;
  }
}

std::vector<float> WeightElements::values() const {
  std::vector<float> all(size());
  read(0, all);
  return all;
}

std::int64_t DecoderWeights::size_bytes() const {
  std::int64_t bytes = embeddings.size_bytes() + logits.size_bytes();
  std::size_t floats = norm.size();
  for (const Layer& layer : layers) {
    for (const auto* matrix :
         {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
      bytes += matrix->size_bytes();
    }
    for (const auto* values : {&layer.attention_norm, &layer.ffn_norm, &layer.q_bias, &layer.k_bias,
                               &layer.v_bias, &layer.o_bias, &layer.q_norm, &layer.k_norm}) {
      floats += values->size();
    }
  }
  return bytes + static_cast<std::int64_t>(floats * sizeof(float));
}

DecoderWeights random_weights(const DecoderConfig& config, const DecoderPart& part,
                              std::uint64_t seed) {
  check_decoder_config(config);
  return WeightReader(*random_source(seed), config, part).read();
}

DecoderWeights load_weights(const std::string& folder, const DecoderConfig& config,
                            const DecoderPart& part) {
  check_decoder_config(config);
  return WeightReader(*safetensors_source(folder), config, part).read();
}

}  // namespace contextile
