// A decoder-only transformer on the ranks of a group: heads and feed-forward are split as in tensor
// parallelism, cached tokens as KvLayout says, and the tokens of prompts by context parallelism.
//
//   const DecoderConfig config = read_decoder_config("SmolLM2-135M");
//   DecoderRank rank(transport, config, load_weights("SmolLM2-135M", config, part),
//                    {.num_pages = 1000});
//   const HostTensor logits = rank.forward(requests);  // collective
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/transport.h"
#include "contextile/serving/decode.h"
#include "contextile/serving/kv_cache.h"
#include "contextile/serving/prefill.h"
#include "contextile/tensor.h"

namespace contextile {

// Rotary embedding (RoFormer, section 3.2): pairs (d, d + dim/2) are rotated by position ·
// theta^(-2d/dim).
struct RopeConfig {
  // YaRN (arXiv 2309.00071): frequencies with at least `fast_turns` turns in original_length tokens
  // stay, those with at most `slow_turns` are divided by `factor`, with a ramp over pairs between.
  struct Yarn {
    double fast_turns = 32;
    double slow_turns = 1;
    bool whole_pairs = true;      // the ramp begins and ends at a pair
    double attention_factor = 1;  // of sines and cosines

    friend bool operator==(const Yarn&, const Yarn&) = default;
  };

  double theta = 10'000;
  // Divisor of the frequencies of wavelengths beyond the trained context (1: none are divided).
  // Linear: all frequencies are divided. With `original_length` above 0, as in Llama 3.1: those of
  // wavelengths longer than original_length / low_frequency are divided, with a ramp to those
  // shorter than original_length / high_frequency.
  double factor = 1;
  double low_frequency = 1;
  double high_frequency = 4;
  std::int64_t original_length = 0;  // tokens; 0: linear
  std::optional<Yarn> yarn = {};
  bool interleaved = false;  // pairs are (2d, 2d + 1)

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// Feed-forwards of which a router chooses a few for each token.
struct ExpertsConfig {
  // The weights of the chosen experts.
  enum class Weights : std::uint8_t {
    kSoftmax,        // of all experts' logits (Mixtral, Qwen3-MoE, DeepSeek-V2)
    kChosenSoftmax,  // of the chosen experts' logits (gpt-oss)
    kSigmoid,        // of each logit; the choice adds a bias to them (DeepSeek-V3)
  };
  // Names of the tensors, and their shapes: w1, w3 and w2 of every expert; gate_proj, up_proj and
  // down_proj; or gate_up_proj and down_proj of all experts together, with biases.
  enum class Files : std::uint8_t { kMixtral, kQwen, kGptOss };
  // (up + 1)·gate·sigmoid(alpha·gate) of a gate of at most `limit` and an up of -limit to limit.
  struct ClampedGate {
    double alpha = 1.702;
    double limit = 7;

    friend bool operator==(const ClampedGate&, const ClampedGate&) = default;
  };

  std::int32_t num_experts = 8;
  std::int32_t top_k = 2;        // experts of a token
  std::int32_t ffn_size = 512;   // of an expert
  std::int32_t shared_size = 0;  // of a feed-forward that all tokens use, too; 0: none
  Weights weights = Weights::kSoftmax;
  bool norm_weights = true;  // weights of a token are divided by their sum
  double weight_factor = 1;
  // Neighbouring experts form groups, and a token's experts are of `top_groups` of them: those with
  // the largest weight, or with kSigmoid the largest sum of two. These divide the experts.
  std::int32_t num_groups = 1;
  std::int32_t top_groups = 1;
  Files files = Files::kQwen;
  std::optional<ClampedGate> clamped = {};  // none: silu(gate)·up

  friend bool operator==(const ExpertsConfig&, const ExpertsConfig&) = default;
};

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values of all
// heads are products with a latent vector, which is cached, and a rotated key of all heads.
struct LatentConfig {
  std::int32_t q_rank = 0;    // of a latent vector of queries; 0: they have none
  std::int32_t kv_rank = 64;  // elements of the latent vector
  std::int32_t rope_dim = 8;  // of the rotated key
  std::int32_t value_dim = 16;

  friend bool operator==(const LatentConfig&, const LatentConfig&) = default;
};

// Sizes and variants of a model with root-mean-square norms before attention and before a gated
// feed-forward, and rotary embedding: Llama, Mistral, Qwen2, Qwen3, their mixtures of experts,
// gpt-oss and DeepSeek-V2 and V3.
struct DecoderConfig {
  std::int32_t vocab_size = 256;
  std::int32_t hidden_size = 192;
  std::int32_t num_layers = 4;
  std::int32_t q_heads = 24;
  std::int32_t kv_heads = 2;   // divides q_heads; 1 with a latent vector
  std::int32_t head_dim = 16;  // of queries
  std::int32_t ffn_size = 512;
  // Number of tokens that queries of a layer see, their own included; 0 or no entry: all before
  // them.
  std::vector<std::int32_t> windows = {};  // by layer
  std::optional<ExpertsConfig> experts = {};
  std::vector<std::int32_t> dense_layers = {};  // those without experts, if others have some
  std::optional<LatentConfig> latent = {};
  RopeConfig rope = {};
  double scale = 0;  // of scores; 0: 1/sqrt(head_dim)
  double norm_epsilon = 1e-5;
  bool qkv_bias = false;  // the projections to queries, keys and values have a bias (Qwen2)
  bool o_bias = false;    // the projection of outputs has a bias (Llama with attention_bias)
  bool sinks = false;     // every query head has a sink logit (gpt-oss)
  bool qk_norm = false;   // queries and keys are normed by head before they are rotated (Qwen3)
  bool tied_embeddings = false;       // logits are products with the tokens' embeddings
  std::int32_t draft_layers = 0;      // behind the others in files (DeepSeek-V3's); not computed
  std::int64_t max_length = 131'072;  // tokens of a request, its output included
  std::vector<std::int32_t> end_tokens = {};

  [[nodiscard]] std::int32_t window(std::int32_t layer) const {
    const auto i = static_cast<std::size_t>(layer);
    return i < windows.size() ? windows[i] : 0;
  }
  [[nodiscard]] bool has_experts(std::int32_t layer) const;
  // Inner elements of the feed-forward that all tokens of a layer use; 0: it has experts alone.
  [[nodiscard]] std::int32_t dense_size(std::int32_t layer) const {
    return has_experts(layer) ? experts->shared_size : ffn_size;
  }
  // Elements of a cached key and value of a KV head, of an output of a query head, and of a query
  // that are rotated. Cached values of latent attention are the first elements of keys.
  [[nodiscard]] std::int32_t key_dim() const {
    return latent ? latent->kv_rank + latent->rope_dim : head_dim;
  }
  [[nodiscard]] std::int32_t value_dim() const { return latent ? latent->kv_rank : head_dim; }
  [[nodiscard]] std::int32_t output_dim() const { return latent ? latent->value_dim : head_dim; }
  [[nodiscard]] std::int32_t rope_dim() const { return latent ? latent->rope_dim : head_dim; }
  [[nodiscard]] double score_scale() const;

  friend bool operator==(const DecoderConfig&, const DecoderConfig&) = default;
};

// Throws InvalidArgument on impossible sizes.
void check_decoder_config(const DecoderConfig& config);
// Reads config.json in a folder of Hugging Face's format. Throws IoError. Throws InvalidArgument
// that names the key if this model does not support it (another model_type or activation, rotary
// scaling of other kinds, biases of the feed-forward, quantized weights, other routers).
[[nodiscard]] DecoderConfig read_decoder_config(const std::string& folder);
// Returns the number of tokens that a token sees in the layer that sees most (KvCacheOptions); 0 if
// a layer has no window.
[[nodiscard]] std::int64_t cache_window(const DecoderConfig& config);
// Returns that of the model that sees more, where two models use one cache.
[[nodiscard]] std::int64_t cache_window(const DecoderConfig& config, const DecoderConfig& other);
// Return the number of parameters of the whole model, and of those the number that experts and
// routers have.
[[nodiscard]] std::int64_t num_parameters(const DecoderConfig& config);
[[nodiscard]] std::int64_t num_expert_parameters(const DecoderConfig& config);

// The part of a model that a rank of a group computes.
//
// The N ranks of a group are T tensor-parallel by C context-parallel ones: rank c·T + t. Ranks of
// the same c split heads and feed-forward. Ranks of the same t share the tokens of prompts, and
// each of them holds all weights of its t. While tokens are decoded, all N ranks split heads,
// feed-forward and vocabulary.
//
// S ranks that hold the same KV heads share the tokens of the cache: those of the same t if there
// are several c, otherwise S neighbours. Heads are split over the N/S groups of such ranks. Sizes
// that are split over groups must be divided by their number. The number of ranks of a group need
// not divide anything; its ranks differ by at most one.
struct DecoderPart {
  Rank rank{0};
  std::int32_t num_ranks = 1;  // N
  // True: all query heads of the ranks that share tokens are projected on each of them, so that
  // they need not be sent (DecodeMode::kQReplicated).
  bool all_queries = true;
  std::int32_t context_parallel = 1;  // C; divides N
  std::int32_t kv_ranks = 0;          // S; 0: N, or C if there are several

  [[nodiscard]] constexpr std::int32_t tensor_parallel() const {
    return num_ranks / context_parallel;
  }
  // The number S of ranks that share tokens, and the number of their groups.
  [[nodiscard]] constexpr std::int32_t token_ranks() const {
    return kv_ranks > 0 ? kv_ranks : context_parallel > 1 ? context_parallel : num_ranks;
  }
  [[nodiscard]] constexpr std::int32_t head_groups() const { return num_ranks / token_ranks(); }

  // Returns the range of `count` tokens of the vocabulary that are this rank's.
  [[nodiscard]] constexpr Range of(std::int64_t count) const {
    return share(count, rank.value, num_ranks);
  }
  // Return the range of `count` heads or elements that this rank computes while tokens are decoded;
  // that of the weights it holds, which it uses for its own tokens of prompts; and that of the
  // ranks that share tokens with it.
  [[nodiscard]] constexpr Range own(std::int64_t count) const {
    return share(count, place(), num_ranks);
  }
  [[nodiscard]] constexpr Range held(std::int64_t count) const {
    return context_parallel == 1 ? own(count)
                                 : share(count, rank.value % tensor_parallel(), tensor_parallel());
  }
  [[nodiscard]] constexpr Range group(std::int64_t count) const {
    return share(count, place() / token_ranks(), head_groups());
  }
  // Returns the KV heads that the ranks of a group hold: a part of them, or one if groups are more.
  [[nodiscard]] constexpr Range kv_heads(std::int64_t count) const {
    const std::int64_t groups = head_groups();
    if (count >= groups) return group(count);
    const std::int64_t head = count * (place() / token_ranks()) / groups;
    return {head, head + 1};
  }
  // Returns the query heads whose projection this rank holds.
  [[nodiscard]] constexpr Range queries(std::int64_t count) const {
    return all_queries || context_parallel > 1 ? group(count) : own(count);
  }

  // The ranks that split the layers of this rank's tokens, those that share tokens with it, in the
  // order in which they hold tokens.
  [[nodiscard]] std::vector<Rank> tensor_group() const;
  [[nodiscard]] std::vector<Rank> token_group() const;

 private:
  // Ranks by the heads they own: those that share tokens are neighbours.
  [[nodiscard]] constexpr std::int32_t place() const {
    const std::int32_t tp = tensor_parallel();
    return rank.value % tp * context_parallel + rank.value / tp;
  }
  [[nodiscard]] static constexpr Range share(std::int64_t count, std::int64_t i, std::int64_t n) {
    return {count * i / n, count * (i + 1) / n};
  }
};

// Throws InvalidArgument that names the sizes which do not divide each other.
void check_decoder_part(const DecoderConfig& config, const DecoderPart& part);

// Elements of a matrix, row by row, in fp32 or in bf16.
class WeightElements {
 public:
  WeightElements() = default;
  explicit WeightElements(std::vector<float> values) : f32_(std::move(values)) {}
  explicit WeightElements(std::vector<std::uint16_t> bits) : bf16_(std::move(bits)) {}

  [[nodiscard]] bool is_bf16() const { return !bf16_.empty(); }
  [[nodiscard]] std::size_t size() const { return is_bf16() ? bf16_.size() : f32_.size(); }
  [[nodiscard]] std::int64_t size_bytes() const;
  [[nodiscard]] std::span<const float> f32() const { return f32_; }
  [[nodiscard]] std::span<const std::uint16_t> bf16() const { return bf16_; }
  // Returns elements [first, first + values.size()) as fp32, and writes one, rounded to the dtype.
  void read(std::size_t first, std::span<float> values) const;
  void set(std::size_t i, float value);
  [[nodiscard]] std::vector<float> values() const;

  friend bool operator==(const WeightElements&, const WeightElements&) = default;

 private:
  std::vector<float> f32_;
  std::vector<std::uint16_t> bf16_;
};

// A rank's weights. Experts are split over all ranks, and everything else as DecoderPart says.
// Matrices are [outputs, inputs], in bf16 where the files have them so; they are widened a few rows
// at a time when they are multiplied. Vectors are fp32.
struct DecoderWeights {
  struct Layer {
    // One expert; the biases are there if all are.
    struct Expert {
      WeightElements gate, up, down;
      std::vector<float> gate_bias, up_bias, down_bias;

      friend bool operator==(const Expert&, const Expert&) = default;
    };
    std::vector<float> attention_norm, ffn_norm;
    std::vector<float> q_bias, k_bias, v_bias, o_bias;
    std::vector<float> q_norm, k_norm;
    std::vector<float> sinks;  // of all query heads
    WeightElements q, k, v, o;
    WeightElements gate, up, down;  // dense, or of shared experts
    // Latent attention: q takes what q_a returns, if that is there; kv_b has rows of keys without a
    // rotated part, then of values, by head.
    WeightElements q_a, kv_a, kv_b;
    std::vector<float> q_a_norm, kv_a_norm;
    WeightElements router;  // [experts, hidden]
    std::vector<float> router_bias, choice_bias;
    std::vector<Expert> experts;  // this rank's: DecoderPart::own
  };
  DecoderPart part;
  WeightElements embeddings;  // of all tokens
  std::vector<Layer> layers;
  std::vector<float> norm;
  WeightElements logits;  // of this rank's tokens

  [[nodiscard]] std::int64_t size_bytes() const;
};

// Returns weights of an untrained model, normally distributed around 0. Every rank's weights are
// parts of the same ones, whatever the number of ranks.
[[nodiscard]] DecoderWeights random_weights(const DecoderConfig& config, const DecoderPart& part,
                                            std::uint64_t seed);
// Loads a rank's part of model.safetensors, or of the files that model.safetensors.index.json
// lists, of f32, bf16 or f16 (widened to fp32). Throws IoError, and InvalidArgument that names the
// file and the tensor.
[[nodiscard]] DecoderWeights load_weights(const std::string& folder, const DecoderConfig& config,
                                          const DecoderPart& part);

// Returns a digest of the files that load_weights reads: of their names, sizes and headers, and of
// samples of at most 16 MiB of each. Throws as load_weights does.
[[nodiscard]] std::uint64_t weights_digest(const std::string& folder);

// Returns the heads and dims of the attention that ranks which share tokens compute for a prompt,
// and the mask of layers with a window (DecoderConfig::window).
[[nodiscard]] AttentionShape prompt_attention(const DecoderConfig& config, const DecoderPart& part);
[[nodiscard]] MaskSpec window_mask(std::int32_t window);

// How ranks compute prompts whose tokens they share (DecoderPart::context_parallel above 1).
struct PrefillPolicy {
  // Parts of prompts with at least as many tokens are shared; shorter ones are computed as decoding
  // is. 0: all are.
  std::int64_t min_tokens = 64;
  std::optional<PrefillMode> mode;  // none: the one that a simulation with measured rates prefers
  PrefillChunks chunks = PrefillChunks::kEven;
  // If set: makes a plan of the batch, which is executed instead of a mode. All ranks must get the
  // same plan. A batch that has none is computed in a mode. See remembered_plans.
  PrefillPlanner plan = {};
};

struct DecoderOptions {
  KvLayout layout;                             // has the ranks that share tokens
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
  PrefillPolicy prefill;
};

// One request's tokens of a step, consecutive in the request: part of a prompt, or the token that
// was sampled last with drafts behind it.
struct StepRequest {
  std::span<const std::int32_t> tokens;
  std::int64_t position = 0;      // of the first
  std::span<const PageId> table;  // covers all its tokens up to the last of these
  std::int64_t num_logits = 1;    // of its last tokens
  std::int32_t num_drafts = 0;    // last tokens that are drafts, computed as decoding does
};

// Bytes that a rank has sent since construction, by purpose.
struct DecoderTraffic {
  std::int64_t attention_bytes = 0;
  std::int64_t prefill_bytes = 0;    // attention of shared prompts, and their keys on their way to
                                     // the cache
  std::int64_t reduction_bytes = 0;  // sums over ranks after attention and feed-forward
  std::int64_t expert_bytes = 0;     // rows of shared prompts on their way to experts and back
  std::int64_t logits_bytes = 0;
};

// Additions and multiplications of a rank since construction, by part of a layer.
struct DecoderWork {
  std::int64_t projection_flops = 0;  // to queries, keys, values, and of outputs
  std::int64_t attention_flops = 0;
  std::int64_t feed_forward_flops = 0;
  std::int64_t logits_flops = 0;
};

// One rank of a group. Collective: every rank makes the same calls with the same arguments. One
// thread at a time.
class DecoderRank {
 public:
  // Throws InvalidArgument when weights, layout and group do not fit. Collective if prompts are
  // shared in no given mode: ranks measure their rates (measure_prefill_rates).
  DecoderRank(Transport& transport, const DecoderConfig& config, DecoderWeights weights,
              const DecoderOptions& options);
  ~DecoderRank();
  DecoderRank(const DecoderRank&) = delete;
  DecoderRank& operator=(const DecoderRank&) = delete;

  // Copies pages. Call it before the step whose tokens are written to the copies.
  void copy_pages(std::span<const PageCopy> copies);
  // Caches keys and values of the requests' tokens. Returns the logits [n, 1, vocab_size] after the
  // last num_logits tokens of each request, in order; the same bits on every rank. Throws
  // InvalidArgument and TransportError.
  [[nodiscard]] HostTensor forward(std::span<const StepRequest> requests);

  [[nodiscard]] const DecoderTraffic& traffic() const;
  [[nodiscard]] const DecoderWork& work() const;
  // Returns the bytes of this rank's pages, over all layers.
  [[nodiscard]] std::int64_t kv_bytes() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

// Returns the bytes of keys and values that a token takes on a rank that holds it, over all layers.
// `kv_heads` of them are on the rank; 0: all.
[[nodiscard]] std::int64_t kv_bytes_per_token(const DecoderConfig& config, KvDtype dtype,
                                              std::int64_t kv_heads = 0);

}  // namespace contextile
