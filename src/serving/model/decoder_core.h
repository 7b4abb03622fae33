// The state of a rank of a decoder, and the parts of a layer that decoding and prefill share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/serving/decoder_model.h"
#include "serving/model/linear.h"
#include "serving/model/metered_transport.h"
#include "serving/model/rotary.h"
#include "transport/subgroup_transport.h"

namespace contextile {

using Floats = std::vector<float>;

// Keys and values of a layer. Pages that were never written are NaN, so that reading one shows.
struct LayerPages {
  HostTensor k;  // [pages · page size, kv_heads, key_dim]
  HostTensor v;  // empty if values are elements of keys
};

// Returns a tensor [pages · page size, heads, dim] as pages.
[[nodiscard]] PagedTensor paged_tensor(const HostTensor& tensor, std::int32_t page_size);

// The rows of a feed-forward: those of a step, which all ranks have, or those of this rank's tokens
// of a prompt, which the ranks of its tensor group have.
enum class RowsOf : std::uint8_t { kStep, kOwnTokens };

// Rows of activations are fp32 [rows, hidden], contiguous.
class DecoderCore {
 public:
  // Throws InvalidArgument when weights, layout and group do not fit.
  DecoderCore(Transport& transport, const DecoderConfig& config, DecoderWeights weights,
              const DecoderOptions& options);

  [[nodiscard]] const DecoderConfig& config() const { return config_; }
  [[nodiscard]] const DecoderOptions& options() const { return options_; }
  [[nodiscard]] const DecoderPart& part() const { return weights_.part; }
  [[nodiscard]] const DecoderWeights::Layer& layer(std::int32_t i) const {
    return weights_.layers[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] LayerPages& pages(std::int32_t layer) {
    return pages_[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] std::size_t hidden() const { return static_cast<std::size_t>(config_.hidden_size); }

  // All ranks; those that split the layers of this rank's tokens; those that share tokens with it.
  [[nodiscard]] Transport& world() { return world_; }
  [[nodiscard]] Transport& tensor_group() { return tensor_group_; }
  [[nodiscard]] Transport& token_group() { return token_group_; }
  // From here on, launched bytes are added to `bytes` of the traffic.
  void meter(std::int64_t& bytes) { world_.meter(bytes); }
  [[nodiscard]] DecoderTraffic& traffic() { return traffic_; }
  [[nodiscard]] DecoderWork& work() { return work_; }

  // Throws InvalidArgument unless the token is one of the vocabulary.
  void check_token(std::int32_t token) const;
  [[nodiscard]] Floats embed(std::span<const std::int32_t> tokens) const;
  [[nodiscard]] Floats rows_at(std::span<const float> x, std::span<const std::size_t> rows) const;
  [[nodiscard]] Floats normed(std::span<const float> x, std::span<const float> weight) const;

  // Queries of the heads `heads` of rows, of those that this rank's weights have: projected, normed
  // by head if the model does so, and rotated. Keys and values likewise, of all heads that the rank
  // has. Keys of latent attention are the latent vectors with the rotated key, and there are no
  // values.
  [[nodiscard]] Floats queries(const DecoderWeights::Layer& layer, std::span<const float> x,
                               Range heads, std::span<const std::int64_t> positions);
  [[nodiscard]] Floats keys(const DecoderWeights::Layer& layer, std::span<const float> x,
                            std::span<const std::int64_t> positions);
  [[nodiscard]] Floats values(const DecoderWeights::Layer& layer, std::span<const float> x);

  // With latent attention: the queries that such keys meet, [rows, heads, key_dim], the outputs of
  // attention to them, [rows, heads, output_dim], and the keys without rotation and the values of
  // latent vectors for all heads of this rank's weights.
  [[nodiscard]] Floats latent_queries(const DecoderWeights::Layer& layer, std::span<const float> q,
                                      Range heads);
  [[nodiscard]] Floats outputs_of_latent(const DecoderWeights::Layer& layer,
                                         std::span<const float> o, Range heads);
  [[nodiscard]] Floats expanded(const DecoderWeights::Layer& layer, std::span<const float> latents);
  // Lets the sinks of the heads `heads` take their part of the weights of outputs o, whose LSE is
  // that of keys alone.
  static void apply_sinks(const DecoderWeights::Layer& layer, Range heads,
                          std::span<const float> lse, std::span<float> o);

  // x += the projection of outputs o of the query heads `heads`, summed over `ranks`, which have
  // all heads between them.
  void add_outputs(const DecoderWeights::Layer& layer, std::span<const float> o, Range heads,
                   Transport& ranks, Floats& x);
  // x += the output of the feed-forward, of which every rank computes a part.
  void add_feed_forward(std::int32_t index, RowsOf rows, Floats& x);
  // The logits of all tokens. Every rank computes those of its part of the vocabulary.
  [[nodiscard]] HostTensor logits(const Floats& sampled);

  // Writes keys and values of tokens [slots, heads of this rank, dim] into their slots.
  void keep(std::int32_t layer, std::span<const std::int64_t> slots, std::span<const float> keys,
            std::span<const float> values);
  [[nodiscard]] PagedKv paged_kv(std::int32_t layer) const;
  void copy_pages(std::span<const PageCopy> copies);

 private:
  [[nodiscard]] const DecoderPart& checked_part() const;
  [[nodiscard]] static Floats product(std::span<const float> x, const WeightsView& weights,
                                      std::int64_t& flops);
  // Rows of kv_b that make keys or values of a head.
  [[nodiscard]] WeightsView latent_rows(const DecoderWeights::Layer& layer, std::int64_t head,
                                        Range rows) const;
  void finish_heads(std::span<const float> norm, std::span<const std::int64_t> positions,
                    std::int32_t dim, Floats& heads) const;
  void sum(Transport& ranks, Floats& values);

  const DecoderConfig config_;
  const DecoderWeights weights_;
  const DecoderOptions options_;
  DecoderTraffic traffic_;
  DecoderWork work_;
  MeteredTransport world_;
  SubgroupTransport tensor_group_;
  SubgroupTransport token_group_;
  Rotary rotary_;
  std::vector<LayerPages> pages_;
};

}  // namespace contextile
