#include <algorithm>
#include <cmath>
#include <set>
#include <type_traits>
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
    // A second copy counts if there is one, whatever config.json says.
    const bool untied = source_.contains("lm_head.weight") || !config_.tied_embeddings;
    weights.logits =
        matrix(untied ? "lm_head.weight" : "model.embed_tokens.weight", config_.vocab_size,
               config_.hidden_size, part_.of(config_.vocab_size), all(config_.hidden_size));
    return weights;
  }

  // Throws if the source has tensors that are not the model's: it would be another one with them.
  void check_all_read() const {
    std::string some;
    std::int64_t count = 0;
    for (const std::string& name : source_.names()) {
      if (known_.contains(name) || is_left_out(name)) continue;
      if (++count <= 3) some += (some.empty() ? "" : ", ") + name;
    }
    CONTEXTILE_CHECK(count == 0, "weights: expected the tensors of the model alone, found {}{}",
                     some, count > 3 ? fmt::format(" and {} others", count - 3) : "");
  }

 private:
  // Frequencies, which follow from the configuration, and layers that draft tokens (DeepSeek-V3's).
  [[nodiscard]] bool is_left_out(const std::string& name) const {
    if (name.ends_with("rotary_emb.inv_freq")) return true;
    for (std::int32_t i = 0; i < config_.draft_layers; ++i) {
      if (name.starts_with(fmt::format("model.layers.{}.", config_.num_layers + i))) return true;
    }
    return false;
  }

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
    return matrix(MatrixPart{name, rows, columns, row_range, column_range});
  }
  [[nodiscard]] WeightElements matrix(const std::string& name, std::int64_t rows,
                                      std::int64_t columns) const {
    return matrix(name, rows, columns, all(rows), all(columns));
  }
  [[nodiscard]] WeightElements matrix(const MatrixPart& part) const {
    const std::string& name = part.name;
    known_.insert(name);
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
    known_.insert(name);
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
  [[nodiscard]] static Range elements(Range heads, std::int64_t dim) {
    return {heads.begin * dim, heads.end * dim};
  }

  [[nodiscard]] DecoderWeights::Layer layer(std::int32_t i) const {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    const std::int64_t hidden = config_.hidden_size;
    DecoderWeights::Layer layer;
    layer.attention_norm = vector(at + "input_layernorm.weight", hidden);
    if (config_.latent) {
      read_latent_attention(at + "self_attn.", layer);
    } else {
      read_attention(at + "self_attn.", layer);
    }
    const std::int64_t o_size = std::int64_t{config_.q_heads} * config_.output_dim();
    const Range outputs = elements(part_.held(config_.q_heads), config_.output_dim());
    layer.o = matrix(at + "self_attn.o_proj.weight", hidden, o_size, all(hidden), outputs);
    if (config_.o_bias) layer.o_bias = vector(at + "self_attn.o_proj.bias", hidden);
    layer.ffn_norm = vector(at + "post_attention_layernorm.weight", hidden);
    if (config_.has_experts(i)) read_experts(at, layer);
    const std::int64_t size = config_.dense_size(i);
    if (size == 0) return layer;
    const std::string dense = at + (config_.has_experts(i) ? "mlp.shared_experts." : "mlp.");
    const Range inner = part_.held(size);
    layer.gate = matrix(dense + "gate_proj.weight", size, hidden, inner, all(hidden));
    layer.up = matrix(dense + "up_proj.weight", size, hidden, inner, all(hidden));
    layer.down = matrix(dense + "down_proj.weight", hidden, size, all(hidden), inner);
    return layer;
  }

  void read_attention(const std::string& at, DecoderWeights::Layer& layer) const {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t dim = config_.head_dim;
    const std::int64_t q_size = config_.q_heads * dim;
    const std::int64_t kv_size = config_.kv_heads * dim;
    const Range queries = elements(part_.queries(config_.q_heads), dim);
    const Range keys = elements(part_.kv_heads(config_.kv_heads), dim);
    layer.q = matrix(at + "q_proj.weight", q_size, hidden, queries, all(hidden));
    layer.k = matrix(at + "k_proj.weight", kv_size, hidden, keys, all(hidden));
    layer.v = matrix(at + "v_proj.weight", kv_size, hidden, keys, all(hidden));
    if (config_.qkv_bias) {
      layer.q_bias = vector(at + "q_proj.bias", q_size, queries);
      layer.k_bias = vector(at + "k_proj.bias", kv_size, keys);
      layer.v_bias = vector(at + "v_proj.bias", kv_size, keys);
    }
    if (config_.qk_norm) {
      layer.q_norm = vector(at + "q_norm.weight", dim);
      layer.k_norm = vector(at + "k_norm.weight", dim);
    }
    if (config_.sinks) layer.sinks = vector(at + "sinks", config_.q_heads);
  }

  // Latent vectors are of all heads, so every rank has the weights that make them.
  void read_latent_attention(const std::string& at, DecoderWeights::Layer& layer) const {
    const LatentConfig& latent = *config_.latent;
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t q_size = std::int64_t{config_.q_heads} * config_.head_dim;
    const std::int64_t b_dim = config_.head_dim - latent.rope_dim + latent.value_dim;
    const Range heads = part_.queries(config_.q_heads);
    const Range queries = elements(heads, config_.head_dim);
    if (latent.q_rank > 0) {
      layer.q_a = matrix(at + "q_a_proj.weight", latent.q_rank, hidden);
      layer.q_a_norm = vector(at + "q_a_layernorm.weight", latent.q_rank);
      layer.q = matrix(at + "q_b_proj.weight", q_size, latent.q_rank, queries, all(latent.q_rank));
    } else {
      layer.q = matrix(at + "q_proj.weight", q_size, hidden, queries, all(hidden));
    }
    layer.kv_a = matrix(at + "kv_a_proj_with_mqa.weight", config_.key_dim(), hidden);
    layer.kv_a_norm = vector(at + "kv_a_layernorm.weight", latent.kv_rank);
    layer.kv_b = matrix(at + "kv_b_proj.weight", config_.q_heads * b_dim, latent.kv_rank,
                        elements(heads, b_dim), all(latent.kv_rank));
  }

  void read_experts(const std::string& at, DecoderWeights::Layer& layer) const {
    using Files = ExpertsConfig::Files;
    const ExpertsConfig& experts = *config_.experts;
    const bool is_mixtral = experts.files == Files::kMixtral;
    const std::string block = at + (is_mixtral ? "block_sparse_moe." : "mlp.");
    const std::string router = block + (experts.files == Files::kGptOss ? "router" : "gate");
    const std::int64_t count = experts.num_experts;
    layer.router = matrix(router + ".weight", count, config_.hidden_size);
    if (experts.files == Files::kGptOss) layer.router_bias = vector(router + ".bias", count);
    if (experts.weights == ExpertsConfig::Weights::kSigmoid) {
      layer.choice_bias = vector(router + ".e_score_correction_bias", count);
    }
    const Range own = part_.own(count);
    for (std::int64_t e = 0; e < count; ++e) {
      const bool is_own = own.begin <= e && e < own.end;
      const std::string place =
          block + (experts.files == Files::kGptOss ? "experts." : fmt::format("experts.{}.", e));
      for (const char* name : names_of_expert(experts.files)) known_.insert(place + name);
      if (!is_own) continue;
      layer.experts.push_back(experts.files == Files::kGptOss ? joined_expert(place, e)
                                                              : expert(place, is_mixtral));
    }
  }

  [[nodiscard]] static std::vector<const char*> names_of_expert(ExpertsConfig::Files files) {
    if (files == ExpertsConfig::Files::kGptOss) {
      return {"gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias"};
    }
    if (files == ExpertsConfig::Files::kMixtral) return {"w1.weight", "w2.weight", "w3.weight"};
    return {"gate_proj.weight", "up_proj.weight", "down_proj.weight"};
  }

  [[nodiscard]] DecoderWeights::Layer::Expert expert(const std::string& at, bool is_mixtral) const {
    const std::int64_t size = config_.experts->ffn_size;
    const std::int64_t hidden = config_.hidden_size;
    DecoderWeights::Layer::Expert expert;
    expert.gate = matrix(at + (is_mixtral ? "w1.weight" : "gate_proj.weight"), size, hidden);
    expert.up = matrix(at + (is_mixtral ? "w3.weight" : "up_proj.weight"), size, hidden);
    expert.down = matrix(at + (is_mixtral ? "w2.weight" : "down_proj.weight"), hidden, size);
    return expert;
  }

  // An expert of tensors of all experts, [inputs, outputs], whose gate and up alternate.
  [[nodiscard]] DecoderWeights::Layer::Expert joined_expert(const std::string& at,
                                                            std::int64_t index) const {
    const std::int64_t size = config_.experts->ffn_size;
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t count = config_.experts->num_experts;
    const WeightElements both =
        matrix({at + "gate_up_proj", hidden, 2 * size, all(hidden), all(2 * size), count, index});
    const WeightElements down =
        matrix({at + "down_proj", size, hidden, all(size), all(hidden), count, index});
    const auto row = [&](const std::string& name, std::int64_t columns) {
      return matrix({name, count, columns, {index, index + 1}, all(columns)}).values();
    };
    const std::vector<float> both_bias = row(at + "gate_up_proj_bias", 2 * size);
    DecoderWeights::Layer::Expert expert;
    expert.gate = transposed(both, 2 * size, 0, 2);
    expert.up = transposed(both, 2 * size, 1, 2);
    expert.down = transposed(down, hidden, 0, 1);
    for (std::size_t i = 0; i < both_bias.size(); i += 2) {
      expert.gate_bias.push_back(both_bias[i]);
      expert.up_bias.push_back(both_bias[i + 1]);
    }
    expert.down_bias = row(at + "down_proj_bias", hidden);
    return expert;
  }

  // Returns columns first, first + step … of a matrix as rows.
  [[nodiscard]] static WeightElements transposed(const WeightElements& elements,
                                                 std::int64_t columns, std::int64_t first,
                                                 std::int64_t step) {
    const auto turn = [&](const auto& values) {
      std::vector<std::remove_cvref_t<decltype(values[0])>> turned;
      turned.reserve(values.size() / static_cast<std::size_t>(step));
      for (std::int64_t column = first; column < columns; column += step) {
        for (std::int64_t at = column; at < std::ssize(values); at += columns) {
          turned.push_back(values[static_cast<std::size_t>(at)]);
        }
      }
      return WeightElements(std::move(turned));
    };
    return elements.is_bf16() ? turn(elements.bf16()) : turn(elements.f32());
  }

  const TensorSource& source_;
  const DecoderConfig& config_;
  const DecoderPart& part_;
  mutable std::set<std::string> known_;  // tensors of the model, other ranks' experts included
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
    for (const auto* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up,
                               &layer.down, &layer.q_a, &layer.kv_a, &layer.kv_b, &layer.router}) {
      bytes += matrix->size_bytes();
    }
    for (const auto* values :
         {&layer.attention_norm, &layer.ffn_norm, &layer.q_bias, &layer.k_bias, &layer.v_bias,
          &layer.o_bias, &layer.q_norm, &layer.k_norm, &layer.sinks, &layer.q_a_norm,
          &layer.kv_a_norm, &layer.router_bias, &layer.choice_bias}) {
      floats += values->size();
    }
    for (const Layer::Expert& expert : layer.experts) {
      bytes += expert.gate.size_bytes() + expert.up.size_bytes() + expert.down.size_bytes();
      floats += expert.gate_bias.size() + expert.up_bias.size() + expert.down_bias.size();
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
  const std::unique_ptr<TensorSource> source = safetensors_source(folder);
  const WeightReader reader(*source, config, part);
  DecoderWeights weights = reader.read();
  reader.check_all_read();
  return weights;
}

}  // namespace contextile
