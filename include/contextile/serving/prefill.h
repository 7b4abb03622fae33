// Prefill over ranks: attention of new tokens, which ranks share, to a cache that lies sharded on
// them and to each other.
//
//   PrefillGroup group(transport, find_kernel(""));
//   group.prepare({.layout = layout, .sequences = sequences}, shape);      // once a batch
//   group.attend(q, k, v, kv, {out.view(), lse.stats()});                  // every layer
//
// Sources: "Context Parallelism for Scalable Million-Token Inference" (arXiv 2411.01783) for
// passing keys and values or queries round a ring; Llama 3 (arXiv 2407.21783) for the all-gather;
// DeepSpeed Ulysses (arXiv 2309.14509).
//
// Legend of suffixes: T new tokens of a rank, H heads, D dim.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/base.h"
#include "contextile/executor.h"
#include "contextile/extend/kernel.h"
#include "contextile/extend/paged_attention.h"
#include "contextile/extend/tensor.h"
#include "contextile/extend/transport.h"
#include "contextile/mask.h"
#include "contextile/plan.h"
#include "contextile/serving/kv_cache.h"
#include "contextile/workload.h"

namespace contextile {

// ------------------------------------------------------------------- who computes which tokens

// How n new tokens of a sequence become 2N chunks, of which rank r has chunks r and 2N-1-r, and how
// it orders them.
enum class PrefillChunks : std::uint8_t {
  // The first n % 2N have a token more than the others; earlier chunks of all sequences, then later
  // ones (SGLang).
  kEven,
  // ceil(n / 2N) tokens, the last ones short or empty; sequence by sequence (vLLM).
  kCeil,
};

[[nodiscard]] std::string_view to_string(PrefillChunks chunks);           // "even", "ceil"
[[nodiscard]] PrefillChunks parse_prefill_chunks(std::string_view text);  // throws InvalidArgument

// One request: what is in the cache already, and what follows it. Position p of the sequence is
// cached where p < cached_tokens, else new token p - cached_tokens.
struct PrefillSequence {
  std::int64_t cached_tokens = 0;
  std::int64_t new_tokens = 0;
  // As in KvLayout, for the cached tokens at least; for to_cache the new ones as well.
  std::span<const PageId> table = {};
};

// What is computed, the same on all ranks. Cached tokens stay where the layout says; new ones are
// dealt in chunks of each sequence.
struct PrefillBatch {
  KvLayout layout;  // its ranks are the group's
  std::span<const PrefillSequence> sequences;
  PrefillChunks chunks = PrefillChunks::kEven;
  // Over the positions of each sequence: causal from position, a window, a window with sinks, …
  MaskSpec mask = {};
};

// New tokens [begin, end) of a sequence, counted from its first new one.
struct PrefillSegment {
  std::int32_t sequence = 0;
  Range tokens;

  friend bool operator==(const PrefillSegment&, const PrefillSegment&) = default;
};

// A rank's rows: its chunks in their order, none of them empty.
struct PrefillRows {
  std::vector<PrefillSegment> segments;

  [[nodiscard]] std::int64_t num_rows() const;
  // Every row's position in its sequence, for RoPE, and its index among the new tokens of all
  // sequences laid end to end. `sequences` are those the rows were dealt from.
  [[nodiscard]] std::vector<std::int64_t> positions(
      std::span<const PrefillSequence> sequences) const;
  [[nodiscard]] std::vector<std::int64_t> tokens(std::span<const PrefillSequence> sequences) const;
};

// Rows of every rank. Throws InvalidArgument on numbers of tokens below 0 or of more than
// kMaxTokens, and on a layout that check_kv_layout refuses.
[[nodiscard]] std::vector<PrefillRows> prefill_rows(const PrefillBatch& batch);

// ------------------------------------------------------------------------------------- modes

// How queries and keys of different ranks meet:
//   kPassKv: keys and values go round a ring, queries stay;
//   kPassQ: queries go round a ring, keys and values stay; outputs with their LSE go to whose
//     queries they are, each while the next is computed;
//   kAllGather: keys and values of all ranks to all, while own ones are computed;
//   kUlysses: heads instead of tokens: queries, keys and values to whose heads they are, outputs
//     back. Needs query heads that ranks divide, and ranks and KV heads of which one divides the
//     other.
enum class PrefillMode : std::uint8_t { kPassKv, kPassQ, kAllGather, kUlysses };

// "pass_kv", "pass_q", "all_gather", "ulysses"
[[nodiscard]] std::string_view to_string(PrefillMode mode);
[[nodiscard]] PrefillMode parse_prefill_mode(std::string_view text);  // throws InvalidArgument

// What a batch makes of its ranks' work. Keys that no new token sees count nowhere.
struct PrefillWork {
  std::int32_t num_ranks = 1;
  std::vector<std::int64_t> q_rows;   // new tokens of every rank
  std::vector<std::int64_t> kv_rows;  // cached and new ones that it has the keys of
  // Attended pairs of the queries of rank a and the keys of rank b, at a · num_ranks + b.
  std::vector<std::int64_t> pairs;
};
// Throws as prefill_rows does, and where the mask does not fit.
[[nodiscard]] PrefillWork prefill_work(const PrefillBatch& batch);

// Bytes that `rank` sends for one layer. With q and kv the rows of a rank, Q and K heads, D and Dv
// dims, e bytes of an element and w of one of `wire`; next is the rank after this one:
//   pass_kv: (sum of kv - kv of next) · K·(D + Dv)·e
//   pass_q: (sum of q - q of next) · Q·D·e + (sum of q - own q) · Q·(Dv·w + 4)
//   all_gather: (N - 1) · own kv · K·(D + Dv)·e
//   ulysses: (N - 1) · (own q · Q/N·D·e + own kv · max(1, K/N)·(D + Dv)·e)
//            + (sum of q - own q) · Q/N·(Dv·w + 4)
[[nodiscard]] std::int64_t prefill_bytes(PrefillMode mode, const PrefillWork& work, Rank rank,
                                         const AttentionShape& shape, Dtype wire = Dtype::kF32);

struct PrefillOptions {
  PrefillMode mode = PrefillMode::kPassKv;
  Dtype wire = Dtype::kF32;  // of outputs on their way; LSE is always f32
};

// Keys and values of new tokens on the rank whose pages they belong to.
struct NewKv {
  HostTensor k_THD;
  HostTensor v_THD;
  std::vector<std::int64_t> slots;  // of every row, counted in tokens over all pages
};

// One rank of a group that prefills. Collective: every rank makes the same calls. One thread at a
// time.
class PrefillGroup {
 public:
  PrefillGroup(Transport& transport, const AttentionKernel& kernel);
  ~PrefillGroup();
  PrefillGroup(PrefillGroup&&) noexcept;
  PrefillGroup& operator=(PrefillGroup&&) noexcept;

  // Finds what all layers of a batch share: rows, tiles, memory for what arrives. Heads of the
  // shape are this rank's, as many on every rank. Throws InvalidArgument, on all ranks with the
  // same words, unless they call with the same arguments and these fit each other.
  void prepare(const PrefillBatch& batch, const AttentionShape& shape,
               const PrefillOptions& options = {});

  // Attention of this rank's new tokens to all that the mask lets them see.
  //
  // q [T, q_heads, head_dim], k [T, kv_heads, head_dim], v [T, kv_heads, value_dim] of the shape's
  // dtype, in the order of prefill_rows. kv: this rank's pages of the cached tokens, of the same
  // dtype. sink_H: a logit for each query head if the shape has a sink. out: O fp32 [T, q_heads,
  // value_dim] and the natural logarithm of its sum; a row that sees no key has O = 0, LSE = -inf.
  // The same call gives the same bits: products and sums are fp32 or wider, parts are merged by
  // rank. Throws InvalidArgument before anything is sent where a tensor of this rank does not fit,
  // and TransportError.
  void attend(const TensorView& q_THD, const TensorView& k_THD, const TensorView& v_THD,
              const PagedKv& kv, const PartialOutput& out, std::span<const float> sink_H = {});

  // Gives new keys and values to the ranks whose pages they belong to, for the next chunk of a
  // prompt or for decoding: rows of what this rank's pages take. Sends every row that is another
  // rank's, K·(D + Dv)·e bytes each. Throws as attend does, and on all ranks where a table is too
  // short.
  [[nodiscard]] NewKv to_cache(const TensorView& k_THD, const TensorView& v_THD);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ---------------------------------------------------------------------------------- prefill choice
//
// Which mode a batch should be prefilled in: by the rule of its authors, and by a simulation.

// What one rank does in a second.
struct PrefillRates {
  double flops_per_s = 0;  // C: attention
  double bytes_per_s = 0;  // BW: to the next rank, while it receives as much
  double message_s = 0;    // what a message takes beside its bytes
};

// Passing keys and values, or queries. Source: arXiv 2411.01783, the heuristic without the
// all-to-all: with T new of T + P tokens, K KV heads for Q heads and e bytes an element,
//   pass_kv if T >= N·C·K·e / (2·Q·BW) or T / (T + P) >= 2·K / Q, else pass_q.
// The first says that a block of keys arrives while another is computed, the second that it is
// no larger than the block of queries. Throws InvalidArgument unless rates are positive and T is.
[[nodiscard]] PrefillMode choose_prefill_mode(std::int64_t new_tokens, std::int64_t cached_tokens,
                                              std::int32_t num_ranks, const AttentionShape& shape,
                                              const PrefillRates& rates);

// Seconds until the last rank has one layer's outputs, computing and sending side by side: a step
// begins when its block has come and the one before is computed, what a rank sends leaves at its
// rate, message by message. Copies, merges and rounding cost nothing. Throws InvalidArgument unless
// rates are positive.
[[nodiscard]] double simulate_prefill_s(PrefillMode mode, const PrefillWork& work,
                                        const AttentionShape& shape, const PrefillRates& rates,
                                        Dtype wire = Dtype::kF32);
// The mode of `modes` (at least one) that takes the least, the first of equal ones.
[[nodiscard]] PrefillMode simulated_prefill_mode(std::span<const PrefillMode> modes,
                                                 const PrefillWork& work,
                                                 const AttentionShape& shape,
                                                 const PrefillRates& rates,
                                                 Dtype wire = Dtype::kF32);

// Measures a group as it is, all ranks at once: a tile of attention, messages round the ring.
// Medians of a few repeats, the slowest rank's, so the same on all ranks. Collective. Takes a
// fraction of a second.
[[nodiscard]] PrefillRates measure_prefill_rates(Transport& transport,
                                                 const AttentionKernel& kernel,
                                                 const AttentionShape& shape);

// ------------------------------------------------------------------------------------ prefill plan
//
// Prefill by a plan of any strategy: the batch as a workload, and a rank's part of executing it.
//
//   const Workload workload = prefill_workload(batch, shape);
//   const PlannedBatch planned = plan_batch(workload, cluster, {"auto"}, {.backward = false});
//   PlannedPrefill prefill(transport, find_kernel(""));
//   prefill.prepare(planned.plan, batch);             // once a batch
//   prefill.attend(q, k, v, kv, {out.view(), lse.stats()});  // every layer

// The batch: of every sequence its cached tokens, which have keys alone, then its new ones. Home
// layout: cached tokens on the ranks whose pages hold them, new ones where prefill_rows deals them.
// So a plan owns every token where it lies; what moves is what its statistics count: keys and
// values (and queries) that a strategy computes elsewhere, and outputs home. Ranges of the home
// layout end with every turn of the cache, so a small interleave makes large plans. Throws as
// prefill_work does, and where there is no token.
[[nodiscard]] Workload prefill_workload(const PrefillBatch& batch, const AttentionShape& shape);

// One rank. Collective, one thread at a time.
class PlannedPrefill {
 public:
  PlannedPrefill(Transport& transport, const AttentionKernel& kernel);
  ~PlannedPrefill();
  PlannedPrefill(PlannedPrefill&&) noexcept;
  PlannedPrefill& operator=(PlannedPrefill&&) noexcept;

  // A plan of the batch's workload with one mask. Throws InvalidArgument where the plan owns a
  // token elsewhere than the batch has it, and as Executor::prepare does.
  void prepare(std::shared_ptr<const Plan> plan, const PrefillBatch& batch);

  // As PrefillGroup::attend, but that O is rounded to the plan's dtype on its way into `out`.
  void attend(const TensorView& q_THD, const TensorView& k_THD, const TensorView& v_THD,
              const PagedKv& kv, const PartialOutput& out, std::span<const float> sink_H = {});

  [[nodiscard]] ExecutionStats last_stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contextile
