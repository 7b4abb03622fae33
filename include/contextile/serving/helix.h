// Predicts Helix parallelism: how long a decoding step takes, and how much fits, when devices share
// the tokens of a cache in attention and the matrices in everything else. Source: "Helix
// Parallelism: Rethinking Sharding Strategies for Interactive Multi-Million-Token LLM Decoding"
// (arXiv 2507.07120).
//
//   const HelixModel model = load_helix_model("deepseek-r1");
//   const HelixHardware machine = load_helix_hardware("gb200");
//   const HelixLoad load = {.batch = 8, .context = 1'000'000};
//   const auto best = fastest_helix(model, machine, 64, load, {}, HelixFamily::kHelix);
//   if (best) std::printf("%.1f us a token\n", best->step.total_us());
//
// Times are those of reading memory and of moving bytes, and those of prompts also of arithmetic;
// docs/serving.md lists what is left out.
// Everything here is a pure function.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/advanced/model.h"
#include "contextile/serving/decode.h"
#include "contextile/serving/prefill.h"

namespace contextile {

// Sizes of attention over one latent KV head that all query heads read (MLA, DeepSeek-V2, section
// 2.1). With it, head_dim of the model is not used and its kv_heads are 1.
struct LatentAttention {
  std::int32_t query_rank = 1536;  // columns of the matrix that compresses queries
  std::int32_t kv_rank = 512;      // cached latent, which partial outputs also consist of
  std::int32_t rope_dim = 64;      // cached with it
  std::int32_t nope_dim = 128;     // of a query head, the part without rotary position
  std::int32_t value_dim = 128;    // of a head, once the latent is expanded

  friend bool operator==(const LatentAttention&, const LatentAttention&) = default;
};

// Experts that replace the feed-forward in all layers except the first `dense_layers`. Routers are
// left out.
struct HelixExperts {
  std::int32_t routed = 256;
  std::int32_t active = 8;  // routed experts that a token takes
  std::int32_t shared = 1;  // experts that every token takes
  std::int32_t ffn = 2048;  // of one expert
  std::int32_t dense_layers = 3;

  friend bool operator==(const HelixExperts&, const HelixExperts&) = default;
};

struct HelixModel {
  ModelSpec shape;
  std::optional<LatentAttention> latent = {};
  std::optional<HelixExperts> experts = {};
  double weight_bytes = 0.5;    // of an element; fp4, without scales
  double kv_bytes = 0.5;        // of a cached element
  double activation_bytes = 2;  // of an element of a partial output or a hidden state that moves

  friend bool operator==(const HelixModel&, const HelixModel&) = default;
};
// Throws InvalidArgument unless the sizes are as stated above and positive.
void check_helix_model(const HelixModel& model);
// Returns "deepseek-r1" and the names of the presets of advanced/model.h.
[[nodiscard]] std::vector<std::string> helix_model_names();
// Loads one of those, or a file as load_model does. Throws as load_model does, and on windows, tied
// embeddings, and shared experts that are not whole experts: predictions do not know them.
[[nodiscard]] HelixModel load_helix_model(std::string_view text);
// Returns the number of elements, embedding and head included, norms and routers not.
[[nodiscard]] std::int64_t num_weights(const HelixModel& model);

// Constants of devices that all reach each other at the same rate.
struct HelixHardware {
  std::string name = "custom";
  std::string description = {};  // source of the numbers
  double memory_gbytes_per_s = 8000;
  double network_gbytes_per_s = 900;  // rate at which a device sends while it receives as much
  double tflops = 2500;   // of products of bf16 matrices, dense; used for mixed steps only
  double latency_us = 7;  // of one exchange or all-reduce, whatever its bytes
  double launch_us = 0;   // of a layer: what its kernels take besides reading and computing
  std::int64_t memory_bytes = 186'000'000'000;
  std::int64_t reserve_bytes = 4'000'000'000;  // part of memory_bytes used neither for weights nor
                                               // for the cache
  std::int32_t max_devices = 72;               // most devices that reach each other at that rate

  friend bool operator==(const HelixHardware&, const HelixHardware&) = default;
};
void check_helix_hardware(const HelixHardware& hardware);  // throws InvalidArgument
[[nodiscard]] const std::vector<HelixHardware>& helix_hardware_presets();
// Loads a preset by name. Throws InvalidArgument that lists the presets.
[[nodiscard]] HelixHardware load_helix_hardware(std::string_view name);

// The rows of a prompt that each KVP group of a layout computes.
enum class HelixPrompts : std::uint8_t {
  kAllRows,  // all of them, each its part of the heads and matrices, as in decoding
  // Its own ones, through whole layers that its TPA devices share (PrefillMode). So a device holds
  // 1/TPA of every matrix. Source: arXiv 2411.01783.
  kOwnRows,
};

// The placement of work on devices. Attention: DP groups of KVP x TPA devices, each with requests
// of its own; TPA devices share the heads and KVP devices the tokens of each head. Feed-forward:
// TPF x EP devices, of which EP share the experts and TPF every matrix. The output projection is
// placed like the feed-forward, except that with DP it stays within a group.
struct HelixLayout {
  std::int32_t kvp = 1;
  std::int32_t tpa = 1;
  std::int32_t tpf = 1;
  std::int32_t ep = 1;
  std::int32_t dp = 1;
  HelixPrompts prompts = HelixPrompts::kAllRows;

  [[nodiscard]] std::int32_t group_devices() const { return kvp * tpa; }
  [[nodiscard]] std::int32_t devices() const { return dp * group_devices(); }
  [[nodiscard]] std::int32_t ffn_devices() const { return tpf * ep; }
  friend bool operator==(const HelixLayout&, const HelixLayout&) = default;
};

enum class HelixFamily : std::uint8_t {
  kTensorParallel,   // KVP 1, DP 1; beyond the KV heads, devices hold the same ones
  kDataParallel,     // KVP 1, DP > 1: attention by requests
  kContextParallel,  // TPF x EP = TPA: the KVP groups repeat the feed-forward
  kHelix,            // KVP > 1, TPF x EP = KVP x TPA
};
[[nodiscard]] std::string_view to_string(HelixFamily family);  // "TP", "DP", "CP", "Helix"
[[nodiscard]] HelixFamily family_of(const HelixLayout& layout);
// Returns "KVP 8 x TPA 8, TPF 64" and, if there are several, "x EP 4", with "DP 8 x " before it and
// ", own rows" behind it.
[[nodiscard]] std::string to_string(const HelixLayout& layout);

// Throws InvalidArgument naming the rule that is broken:
// * TPF x EP is all devices or, with DP 1, TPA;
// * DP is 1 if KVP is not;
// * KVP is above 1 if its groups compute their own rows of prompts;
// * KVP x TPA divides the query heads;
// * TPA divides the KV heads or, with KVP 1, is a multiple of them;
// * TPF divides the feed-forward of an expert, EP the experts, TPF x EP the other feed-forwards.
void check_helix_layout(const HelixModel& model, const HelixLayout& layout);
// Returns every legal layout of that many devices, in order of TPA, then TPF; empty if there is
// none. All compute all rows of prompts.
[[nodiscard]] std::vector<HelixLayout> helix_layouts(const HelixModel& model, std::int32_t devices);

// A batch of requests that decode one token each, all with an equally long history.
struct HelixLoad {
  std::int32_t batch = 1;    // requests, 1 to 2^20
  std::int64_t context = 1;  // tokens of each, 1 to 2^40

  friend bool operator==(const HelixLoad&, const HelixLoad&) = default;
};

struct HopB {
  HopBReading reading = HopBReading::kAttention;
  // Number of groups of requests that alternate, a divisor of the batch; 0: the fastest of all
  // divisors.
  std::int32_t groups = 0;

  friend bool operator==(const HopB&, const HopB&) = default;
};

// Returns the time of `groups` groups that alternate, whose attention takes a and whose exchange
// takes c, with one computing and one exchanging at a time: a + (groups - 1)·max(a, c) + c.
[[nodiscard]] double hop_b_attention(std::int32_t groups, double attention, double exchange);
// Returns the time of layers of `groups` groups that alternate: attention a, then this group's
// exchange c during the feed-forward of the group before. For the first group of a layer, that is
// the last group of the layer before. feed_forward: time of a group in every layer, in order. With
// one group nothing hides the exchange.
[[nodiscard]] double hop_b_feed_forward(std::int32_t groups, double attention, double exchange,
                                        std::span<const double> feed_forward);

// The time of one step by cause, all layers together, in microseconds. The total includes only
// exposed_us of exchange_us.
struct HelixStep {
  double kv_us = 0;          // reading the cache
  double weights_us = 0;     // reading matrices, repeated for every group that needs them again
  double all_reduce_us = 0;  // after output projection and feed-forward
  double exchange_us = 0;    // of partial outputs, the latency of every group included
  double exposed_us = 0;     // the part of it during which nothing computes
  double launch_us = 0;      // HelixHardware::launch_us
  std::int32_t groups = 1;   // of requests

  [[nodiscard]] double total_us() const {
    return kv_us + weights_us + all_reduce_us + exposed_us + launch_us;
  }
};

// The work of one step of any requests, each with any number of tokens: some decode one each,
// others compute a piece of their prompt. Every token is a row.
struct HelixRows {
  std::int64_t rows = 0;
  std::int64_t logits = 0;  // rows whose logits are needed
  std::int64_t keys = 0;    // cached tokens that are read, once per request
  double pairs = 0;         // pairs of a row and a key it attends to

  friend bool operator==(const HelixRows&, const HelixRows&) = default;
};

// Bytes of the fullest device; elements may take half of one.
struct HelixMemory {
  double weights = 0;
  double kv = 0;  // all layers, tokens spread one by one

  [[nodiscard]] double total() const { return weights + kv; }
};

// The functions below predict a step. They throw InvalidArgument on arguments that are not as their
// types say. With b requests, Q query and K KV heads, N devices, P = TPF·EP, S tokens and DP 1, per
// layer:
//   KV: b·⌈K/TPA⌉·(2·D)·(S/KVP) elements; with a latent b·(kv_rank + rope_dim)·(S/KVP);
//   matrices: H·Q·D/TPA + 2·H·⌈K/TPA⌉·D + H·Q·D/P + 3·H·F/P elements, of experts those
//     that b uniform tokens are expected to reach, spread evenly over EP;
//   exchange: latency + (KVP - 1)·b·(Q/N)·(D·e + 8) bytes, the 8 being a row's maximum and sum;
//     where P < N, then latency + (N/P - 1)·b·(Q/N)·D·e to give all KVP groups all heads;
//   two all-reduces of latency + 2·(P - 1)/P·b·H·e bytes each, none where P is 1.
// The head is added once. With DP, attention and output projection are those of TPA devices with
// ⌈b/DP⌉ requests. The first all-reduce is theirs; the second is a gathering of hidden states
// before the feed-forward and a summing and scattering after it, with as many bytes and a latency
// each. Without KVP nothing is exchanged and HOP-B changes nothing.
[[nodiscard]] HelixStep helix_step(const HelixModel& model, const HelixHardware& hardware,
                                   const HelixLayout& layout, const HelixLoad& load,
                                   const HopB& hop_b = {});
// The same for a step of any rows, with DP 1 and HOP-B off. Every part is the longer of reading and
// computing. kv_us: of keys read, or of 2·(Dk + Dv) FLOPs per pair and query head, shared by KVP x
// TPA devices (with a latent Dk = kv_rank + rope_dim and Dv = kv_rank). weights_us, before and
// after attention and for the head: of matrices read, or of 2 FLOPs per element and row. Also
// throws InvalidArgument on more logits than rows, and on no rows.
[[nodiscard]] HelixStep helix_mixed_step(const HelixModel& model, const HelixHardware& hardware,
                                         const HelixLayout& layout, const HelixRows& rows);
// Returns true if heads and devices divide as the mode requires (PrefillMode).
[[nodiscard]] bool takes_prefill_mode(const HelixModel& model, const HelixLayout& layout,
                                      PrefillMode mode);
struct HelixPrefill {
  HelixStep step;  // exchange_us: of queries, keys and outputs, and of keys to the cache
  PrefillMode mode = PrefillMode::kPassKv;
};
// Returns the time of a step of rows of prompts in a layout whose KVP groups compute their own
// rows, in a mode; none: the fastest. Rows and pairs are dealt evenly. With R = rows/KVP, and
// attention a of R rows to all keys, per layer:
//   matrices: of 1/TPA of every matrix with R rows; the head's are split over all devices;
//   two all-reduces of R rows over the TPA devices;
//   attention and exchange as simulate_prefill_s has them for even ranks, every message of
//     latency + bytes: of pass_kv (KVP - 1)·max(a/KVP, keys of keys/KVP tokens) + a/KVP;
//   to the cache: latency + (KVP - 1)/KVP·R keys and values, which nothing hides.
// Throws InvalidArgument as helix_mixed_step does, on another layout, and on ulysses where heads
// do not divide.
[[nodiscard]] HelixPrefill helix_prefill(const HelixModel& model, const HelixHardware& hardware,
                                         const HelixLayout& layout, const HelixRows& rows,
                                         std::optional<PrefillMode> mode = {});
[[nodiscard]] HelixMemory helix_memory(const HelixModel& model, const HelixLayout& layout,
                                       const HelixLoad& load);
// Return the longest context that fits next to the weights, in tokens of each of `batch` requests,
// and the most requests; at most what HelixLoad accepts, 0 if nothing fits.
[[nodiscard]] std::int64_t helix_max_context(const HelixModel& model, const HelixHardware& hardware,
                                             const HelixLayout& layout, std::int32_t batch);
[[nodiscard]] std::int32_t helix_max_batch(const HelixModel& model, const HelixHardware& hardware,
                                           const HelixLayout& layout, std::int64_t context);

struct HelixPoint {
  HelixLayout layout;
  HelixLoad load;
  HelixStep step;

  [[nodiscard]] double tokens_per_s_user() const { return 1e6 / step.total_us(); }
  [[nodiscard]] double tokens_per_s_device() const {
    return tokens_per_s_user() * load.batch / layout.devices();
  }
};

// Returns the layout of a family that takes the least time among those that fit into memory, or
// none. Cost: one step per legal layout and divisor of the batch.
[[nodiscard]] std::optional<HelixPoint> fastest_helix(const HelixModel& model,
                                                      const HelixHardware& hardware,
                                                      std::int32_t devices, const HelixLoad& load,
                                                      const HopB& hop_b, HelixFamily family);

// Returns the shortest context from which on sharing tokens (either family with KVP > 1) takes less
// time than not sharing them on as many devices, regardless of memory; none if there is none up to
// `longest`. Without sharing, the time grows at least as fast with the context, so the crossover is
// unique.
[[nodiscard]] std::optional<std::int64_t> helix_crossover(const HelixModel& model,
                                                          const HelixHardware& hardware,
                                                          std::int32_t devices, std::int32_t batch,
                                                          const HopB& hop_b, std::int64_t longest);

// The numbers of devices, batches and families to try; of each, the fastest layout that fits.
struct HelixSearch {
  std::vector<std::int32_t> devices = {};
  std::vector<std::int32_t> batches = {};
  std::int64_t context = 1'000'000;
  HopB hop_b = {};
  std::vector<HelixFamily> families = {HelixFamily::kTensorParallel, HelixFamily::kDataParallel,
                                       HelixFamily::kContextParallel, HelixFamily::kHelix};
};
// Returns the points that no other point beats in tokens/s of a user without losing in tokens/s of
// a device; the fastest for the user first.
[[nodiscard]] std::vector<HelixPoint> helix_front(const HelixModel& model,
                                                  const HelixHardware& hardware,
                                                  const HelixSearch& search);

// Helix compared with the other families of a search, each with any of its numbers of devices.
struct HelixGain {
  double latency = 0;  // the largest ratio of times at one batch that both can hold
  double batch = 0;    // the largest ratio of batches within one time that both can keep
  // Comparison of fronts: the largest tokens/s of a user over the others', and the largest ratio of
  // tokens/s of a device at any tokens/s of a user that both reach (Helix, 3.2).
  double interactivity = 0;
  double throughput = 0;
};
[[nodiscard]] HelixGain helix_gain(const HelixModel& model, const HelixHardware& hardware,
                                   const HelixSearch& search);

}  // namespace contextile
