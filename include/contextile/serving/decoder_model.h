// A decoder-only transformer on the ranks of a group that share its KV cache: heads and
// feed-forward are split as in tensor parallelism, cached tokens as KvLayout says.
//
//   const DecoderConfig config = read_decoder_config("SmolLM2-135M");
//   DecoderRank rank(transport, config, load_weights("SmolLM2-135M", config, part),
//                    {.num_pages = 1000});
//   const HostTensor logits = rank.forward(requests);  // collective
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/tensor.h"
#include "contextile/extend/transport.h"
#include "contextile/serving/decode.h"
#include "contextile/serving/kv_cache.h"

namespace contextile {

// Rotary embedding (RoFormer, section 3.2): pairs (d, d + head_dim/2) are rotated by position ·
// theta^(-2d/head_dim).
struct RopeConfig {
  double theta = 10'000;
  // Divisor of the frequencies of wavelengths beyond the trained context (1: none are divided).
  // Linear: all frequencies are divided. With `original_length` above 0, as in Llama 3.1: those of
  // wavelengths longer than original_length / low_frequency are divided, with a ramp to those
  // shorter than original_length / high_frequency.
  double factor = 1;
  double low_frequency = 1;
  double high_frequency = 4;
  std::int64_t original_length = 0;  // tokens; 0: linear

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// Sizes and variants of a model with root-mean-square norms before attention and before a gated
// SiLU feed-forward, rotary embedding and grouped query heads: Llama, Mistral, Qwen2, Qwen3.
struct DecoderConfig {
  std::int32_t vocab_size = 256;
  std::int32_t hidden_size = 192;
  std::int32_t num_layers = 4;
  std::int32_t q_heads = 24;
  std::int32_t kv_heads = 2;  // divides q_heads
  std::int32_t head_dim = 16;
  std::int32_t ffn_size = 512;
  // Number of tokens that queries of a layer see, their own included; 0 or no entry: all before
  // them.
  std::vector<std::int32_t> windows = {};  // by layer
  RopeConfig rope = {};
  double norm_epsilon = 1e-5;
  bool qkv_bias = false;  // the projections to queries, keys and values have a bias (Qwen2)
  bool o_bias = false;    // the projection of outputs has a bias (Llama with attention_bias)
  bool qk_norm = false;   // queries and keys are normed by head before they are rotated (Qwen3)
  bool tied_embeddings = false;       // logits are products with the tokens' embeddings
  std::int64_t max_length = 131'072;  // tokens of a request, its output included
  std::vector<std::int32_t> end_tokens = {};

  [[nodiscard]] std::int32_t window(std::int32_t layer) const {
    const auto i = static_cast<std::size_t>(layer);
    return i < windows.size() ? windows[i] : 0;
  }
  friend bool operator==(const DecoderConfig&, const DecoderConfig&) = default;
};

// Throws InvalidArgument on impossible sizes.
void check_decoder_config(const DecoderConfig& config);
// Reads config.json in a folder of Hugging Face's format. Throws IoError. Throws InvalidArgument
// that names the key if this model does not support it (another model_type or activation, rotary
// scaling of other kinds, biases of the feed-forward, quantized weights).
[[nodiscard]] DecoderConfig read_decoder_config(const std::string& folder);
// Returns the number of parameters of the whole model.
[[nodiscard]] std::int64_t num_parameters(const DecoderConfig& config);

// The part of a model that a rank of a group computes: of every layer some query heads and some of
// the feed-forward's inner size, and the logits of some tokens. The number of ranks N need not
// divide any of them; ranks differ by at most one.
struct DecoderPart {
  Rank rank{0};
  std::int32_t num_ranks = 1;
  // True: all query heads are projected on every rank, so that they need not be sent
  // (DecodeMode::kQReplicated).
  bool all_queries = true;

  // Returns the range of `count` items that are this rank's.
  [[nodiscard]] constexpr Range of(std::int64_t count) const {
    return {count * rank.value / num_ranks, count * (rank.value + 1) / num_ranks};
  }
};

// A rank's weights, fp32, matrices [outputs, inputs].
struct DecoderWeights {
  struct Layer {
    std::vector<float> attention_norm;
    std::vector<float> q, q_bias, q_norm;
    std::vector<float> k, k_bias, k_norm;
    std::vector<float> v, v_bias;
    std::vector<float> o, o_bias;
    std::vector<float> ffn_norm;
    std::vector<float> gate, up, down;
  };
  DecoderPart part;
  std::vector<float> embeddings;  // of all tokens
  std::vector<Layer> layers;
  std::vector<float> norm;
  std::vector<float> logits;  // of this rank's tokens

  [[nodiscard]] std::int64_t size_bytes() const;
};

// Returns weights of an untrained model, normally distributed around 0. Every rank's weights are
// parts of the same ones, whatever the number of ranks.
[[nodiscard]] DecoderWeights random_weights(const DecoderConfig& config, const DecoderPart& part,
                                            std::uint64_t seed);
// Loads a rank's part of model.safetensors, or of the files that model.safetensors.index.json
// lists, of f32, bf16 or f16. Throws IoError, and InvalidArgument that names the file and the
// tensor.
[[nodiscard]] DecoderWeights load_weights(const std::string& folder, const DecoderConfig& config,
                                          const DecoderPart& part);

// Returns a digest of the files that load_weights reads: of their names, sizes and headers, and of
// samples of at most 16 MiB of each. Throws as load_weights does.
[[nodiscard]] std::uint64_t weights_digest(const std::string& folder);

struct DecoderOptions {
  KvLayout layout;                             // has the ranks of the group
  std::int32_t num_pages = 0;                  // of every rank
  KvDtype kv_dtype = KvDtype::kF32;            // kF32, kBf16 or kF16
  DecodeMode mode = DecodeMode::kQReplicated;  // the others require that the number of ranks
                                               // divides q_heads
  Dtype wire = Dtype::kF32;                    // of queries and outputs that are sent
  // The work that is computed while outputs are sent. A step's requests, in their order, are cut
  // into at most hop_b_groups groups of about as many tokens. While the outputs of one group are
  // sent, the attention of the next group is computed, or the feed-forward of the one before, so
  // that groups alternate in whole layers.
  HopBReading hop_b = HopBReading::kAttention;
  std::int32_t hop_b_groups = 1;  // 1 with kOff
};

// One request's tokens of a step, consecutive in the request: part of a prompt, or the token that
// was sampled last.
struct StepRequest {
  std::span<const std::int32_t> tokens;
  std::int64_t position = 0;      // of the first
  std::span<const PageId> table;  // covers all its tokens up to the last of these
  bool needs_logits = true;       // of the last token
};

// Bytes that a rank has sent since construction, by purpose.
struct DecoderTraffic {
  std::int64_t attention_bytes = 0;
  std::int64_t reduction_bytes = 0;  // sums over ranks after attention and feed-forward
  std::int64_t logits_bytes = 0;
};

// One rank of a group. Collective: every rank makes the same calls with the same arguments. One
// thread at a time.
class DecoderRank {
 public:
  // Throws InvalidArgument when weights, layout and group do not fit.
  DecoderRank(Transport& transport, const DecoderConfig& config, DecoderWeights weights,
              const DecoderOptions& options);
  ~DecoderRank();
  DecoderRank(const DecoderRank&) = delete;
  DecoderRank& operator=(const DecoderRank&) = delete;

  // Copies pages. Call it before the step whose tokens are written to the copies.
  void copy_pages(std::span<const PageCopy> copies);
  // Caches keys and values of the requests' tokens. Returns the logits [n, 1, vocab_size] after the
  // last tokens of the requests that need them, in order; the same bits on every rank. Throws
  // InvalidArgument and TransportError.
  [[nodiscard]] HostTensor forward(std::span<const StepRequest> requests);

  [[nodiscard]] const DecoderTraffic& traffic() const;
  // Returns the bytes of this rank's pages, over all layers.
  [[nodiscard]] std::int64_t kv_bytes() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

// Returns the bytes of keys and values that a token takes on the rank that holds it, over all
// layers.
[[nodiscard]] std::int64_t kv_bytes_per_token(const DecoderConfig& config, KvDtype dtype);

}  // namespace contextile
