// A decoder-only transformer on the ranks of a group that share its KV cache: heads and
// feed-forward are split as tensor parallelism does, cached tokens as KvLayout says.
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

// Rotary embedding (RoFormer, section 3.2): pairs (d, d + head_dim/2) turn by position ·
// theta^(-2d/head_dim).
struct RopeConfig {
  double theta = 10'000;
  // Frequencies of wavelengths beyond the trained context are divided by `factor` (1: none are):
  // all of them (linear), or with `original_length` above 0 as Llama 3.1 does, those longer than
  // original_length / low_frequency, with a ramp to those shorter than original_length /
  // high_frequency.
  double factor = 1;
  double low_frequency = 1;
  double high_frequency = 4;
  std::int64_t original_length = 0;  // tokens; 0: linear

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// Root-mean-square norms before attention and before a gated SiLU feed-forward, rotary embedding,
// grouped query heads: Llama, Mistral, Qwen2, Qwen3.
struct DecoderConfig {
  std::int32_t vocab_size = 256;
  std::int32_t hidden_size = 192;
  std::int32_t num_layers = 4;
  std::int32_t q_heads = 24;
  std::int32_t kv_heads = 2;  // divides q_heads
  std::int32_t head_dim = 16;
  std::int32_t ffn_size = 512;
  // Tokens that queries of a layer see, their own included; 0 or no entry: all before them.
  std::vector<std::int32_t> windows = {};  // by layer
  RopeConfig rope = {};
  double norm_epsilon = 1e-5;
  bool qkv_bias = false;         // of the projections to queries, keys and values (Qwen2)
  bool o_bias = false;           // of the projection of outputs (Llama with attention_bias)
  bool qk_norm = false;          // queries and keys are normed by head before they turn (Qwen3)
  bool tied_embeddings = false;  // logits are products with the tokens' embeddings
  std::int64_t max_length = 131'072;  // tokens of a request, its output included
  std::vector<std::int32_t> end_tokens = {};

  [[nodiscard]] std::int32_t window(std::int32_t layer) const {
    const auto i = static_cast<std::size_t>(layer);
    return i < windows.size() ? windows[i] : 0;
  }
  friend bool operator==(const DecoderConfig&, const DecoderConfig&) = default;
};

// Throws InvalidArgument on sizes that are no model.
void check_decoder_config(const DecoderConfig& config);
// From config.json in a folder of Hugging Face's format. Throws IoError, and InvalidArgument that
// names the key on what this model has no part for (another model_type or activation, rotary
// scaling of other kinds, biases of the feed-forward, quantized weights).
[[nodiscard]] DecoderConfig read_decoder_config(const std::string& folder);
// Parameters of the whole model.
[[nodiscard]] std::int64_t num_parameters(const DecoderConfig& config);

// What a rank of a group computes: of every layer some query heads and some of the feed-forward's
// inner size, and the logits of some tokens. N need not divide any of them; ranks differ by at most
// one.
struct DecoderPart {
  Rank rank{0};
  std::int32_t num_ranks = 1;
  // Query heads are projected on every rank, so that they need not be sent
  // (DecodeMode::kQReplicated).
  bool all_queries = true;

  // Which of `count` are this rank's.
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

// Weights of a model that nobody trained, normally distributed around 0; every rank's are parts of
// the same ones, whatever their number.
[[nodiscard]] DecoderWeights random_weights(const DecoderConfig& config, const DecoderPart& part,
                                            std::uint64_t seed);
// A rank's part of model.safetensors, or of the files that model.safetensors.index.json lists, of
// f32, bf16 or f16. Throws IoError, and InvalidArgument that names the file and the tensor.
[[nodiscard]] DecoderWeights load_weights(const std::string& folder, const DecoderConfig& config,
                                          const DecoderPart& part);

// A digest of the files that load_weights reads: their names, sizes and headers, and samples of at most
// 16 MiB of each. Ranks with the same digest have loaded the same model. Throws as load_weights does.
[[nodiscard]] std::uint64_t weights_digest(const std::string& folder);

struct DecoderOptions {
  KvLayout layout;                             // its ranks are the group's
  std::int32_t num_pages = 0;                  // of every rank
  KvDtype kv_dtype = KvDtype::kF32;            // kF32, kBf16 or kF16
  DecodeMode mode = DecodeMode::kQReplicated;  // the others: where the ranks divide q_heads
  Dtype wire = Dtype::kF32;                    // of queries and outputs on their way
  // A step's requests, in their order, are cut in at most so many groups of about as many tokens;
  // while the outputs of one are on their way, hop_b is computed: the attention of the next group,
  // or the feed-forward of the one before, so that groups take turns with whole layers.
  HopBReading hop_b = HopBReading::kAttention;
  std::int32_t hop_b_groups = 1;  // 1 with kOff
};

// One request's tokens of a step, next to each other: of a prompt, or the one that was sampled
// last.
struct StepRequest {
  std::span<const std::int32_t> tokens;
  std::int64_t position = 0;      // of the first
  std::span<const PageId> table;  // for all its tokens up to the last of these
  bool needs_logits = true;       // of the last token
};

// Bytes a rank sent since construction, by what for.
struct DecoderTraffic {
  std::int64_t attention_bytes = 0;
  std::int64_t reduction_bytes = 0;  // sums over ranks behind attention and feed-forward
  std::int64_t logits_bytes = 0;
};

// One rank of a group. Collective: every rank calls with the same arguments. One thread at a time.
class DecoderRank {
 public:
  // Throws InvalidArgument when weights, layout and group do not fit.
  DecoderRank(Transport& transport, const DecoderConfig& config, DecoderWeights weights,
              const DecoderOptions& options);
  ~DecoderRank();
  DecoderRank(const DecoderRank&) = delete;
  DecoderRank& operator=(const DecoderRank&) = delete;

  // Before the step whose tokens are written to the copies.
  void copy_pages(std::span<const PageCopy> copies);
  // Caches keys and values of the requests' tokens and returns the logits [n, 1, vocab_size] that
  // follow those that need them, in order; the same bits on every rank. Throws InvalidArgument and
  // TransportError.
  [[nodiscard]] HostTensor forward(std::span<const StepRequest> requests);

  [[nodiscard]] const DecoderTraffic& traffic() const;
  // What this rank's pages take, over all layers.
  [[nodiscard]] std::int64_t kv_bytes() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

// Bytes of keys and values that a token takes on the rank that holds it, over all layers.
[[nodiscard]] std::int64_t kv_bytes_per_token(const DecoderConfig& config, KvDtype dtype);

}  // namespace contextile
