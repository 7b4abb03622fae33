// Prefill over ranks: the attention of new tokens, which ranks share, to a cache that is sharded
// over the ranks and to each other.
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

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/base.h"
#include "contextile/extend/kernel.h"
#include "contextile/extend/paged_attention.h"
#include "contextile/extend/transport.h"
#include "contextile/mask.h"
#include "contextile/plan.h"
#include "contextile/serving/kv_cache.h"
#include "contextile/tensor.h"
#include "contextile/workload.h"

namespace contextile {

// ------------------------------------------------------------------- who computes which tokens

// How the n new tokens of a sequence become 2N chunks, of which rank r has chunks r and 2N-1-r, and
// how a rank orders its chunks.
enum class PrefillChunks : std::uint8_t {
  // The first n % 2N chunks have a token more than the others. A rank has the earlier chunks of all
  // sequences first, then the later ones (SGLang).
  kEven,
  // Chunks have ceil(n / 2N) tokens, the last ones are short or empty. A rank goes sequence by
  // sequence (vLLM).
  kCeil,
};

[[nodiscard]] std::string_view to_string(PrefillChunks chunks);           // "even", "ceil"
[[nodiscard]] PrefillChunks parse_prefill_chunks(std::string_view text);  // throws InvalidArgument

// One request: its tokens in the cache and the new ones that follow. Position p of the sequence is
// cached if p < cached_tokens, otherwise it is new token p - cached_tokens.
struct PrefillSequence {
  std::int64_t cached_tokens = 0;
  std::int64_t new_tokens = 0;
  // Block table as in KvLayout, for the cached tokens at least; for to_cache also for the new ones.
  std::span<const PageId> table = {};
};

// One batch, the same on all ranks. Cached tokens stay where the layout places them; new ones are
// dealt to ranks in chunks of each sequence.
struct PrefillBatch {
  KvLayout layout;  // has the ranks of the group
  std::span<const PrefillSequence> sequences;
  PrefillChunks chunks = PrefillChunks::kEven;
  // Mask over the positions of each sequence, such as causal, a window, or a window with sinks.
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
  // Return every row's position in its sequence, for RoPE, and its index among the new tokens of
  // all sequences laid end to end. `sequences` must be those the rows were dealt from.
  [[nodiscard]] std::vector<std::int64_t> positions(
      std::span<const PrefillSequence> sequences) const;
  [[nodiscard]] std::vector<std::int64_t> tokens(std::span<const PrefillSequence> sequences) const;
};

// Returns the rows of every rank. Throws InvalidArgument on numbers of tokens below 0 or of more
// than kMaxTokens, and on a layout that check_kv_layout refuses.
[[nodiscard]] std::vector<PrefillRows> prefill_rows(const PrefillBatch& batch);

// ------------------------------------------------------------------------------------- modes

// How queries and keys of different ranks meet:
//   kPassKv: keys and values go round a ring, queries stay;
//   kPassQ: queries go round a ring, keys and values stay; outputs with their LSE go to the ranks
//     that own the queries, each while the next is computed;
//   kAllGather: keys and values of all ranks go to all, while own ones are computed;
//   kUlysses: heads instead of tokens: queries, keys and values go to the ranks of their heads,
//     outputs back. Needs query heads that the number of ranks divides, and ranks and KV heads of
//     which one divides the other.
enum class PrefillMode : std::uint8_t { kPassKv, kPassQ, kAllGather, kUlysses };

// "pass_kv", "pass_q", "all_gather", "ulysses"
[[nodiscard]] std::string_view to_string(PrefillMode mode);
[[nodiscard]] PrefillMode parse_prefill_mode(std::string_view text);  // throws InvalidArgument

// The work of a batch on its ranks. Keys that no new token sees are not counted.
struct PrefillWork {
  std::int32_t num_ranks = 1;
  std::vector<std::int64_t> q_rows;   // new tokens of every rank
  std::vector<std::int64_t> kv_rows;  // cached and new tokens whose keys it has
  // Attended pairs of the queries of rank a and the keys of rank b, at a · num_ranks + b.
  std::vector<std::int64_t> pairs;
};
// Counts the work of a batch. Throws as prefill_rows does, and if the mask does not fit.
[[nodiscard]] PrefillWork prefill_work(const PrefillBatch& batch);

// Returns the bytes that `rank` sends for one layer. Notation: q and kv are the rows of a rank, Q
// and K heads, D and Dv dims, e bytes of an element, w of one of `wire` and k of one of `kv_wire`
// (none: e); next is the rank after this one:
//   pass_kv: (sum of kv - kv of next) · K·(D + Dv)·k
//   pass_q: (sum of q - q of next) · Q·D·e + (sum of q - own q) · Q·(Dv·w + 4)
//   all_gather: (N - 1) · own kv · K·(D + Dv)·k
//   ulysses: (N - 1) · (own q · Q/N·D·e + own kv · max(1, K/N)·(D + Dv)·k)
//            + (sum of q - own q) · Q/N·(Dv·w + 4)
[[nodiscard]] std::int64_t prefill_bytes(PrefillMode mode, const PrefillWork& work, Rank rank,
                                         const AttentionShape& shape, Dtype wire = Dtype::kF32,
                                         std::optional<Dtype> kv_wire = {});

struct PrefillOptions {
  PrefillMode mode = PrefillMode::kPassKv;
  Dtype wire = Dtype::kF32;  // of outputs that are sent; LSE is always f32
  // Dtype of keys and values that are sent, which are rounded to it; none: that of the shape. With
  // a cache of this dtype, rounding them once more changes nothing.
  std::optional<Dtype> kv_wire = {};
};

// Keys and values of new tokens, on the rank whose pages they belong to.
struct NewKv {
  HostTensor k_THD;
  HostTensor v_THD;
  std::vector<std::int64_t> slots;  // slot of every row, counted in tokens over all pages
};

// One rank of a group that prefills. Collective: every rank makes the same calls. One thread at a
// time.
class PrefillGroup {
 public:
  PrefillGroup(Transport& transport, const AttentionKernel& kernel);
  ~PrefillGroup();
  PrefillGroup(PrefillGroup&&) noexcept;
  PrefillGroup& operator=(PrefillGroup&&) noexcept;

  // Prepares the data that all layers of a batch share: rows, tiles, and memory for received data.
  // The heads of the shape are this rank's, as many on every rank. Throws InvalidArgument, on all
  // ranks with the same text, unless they call with the same arguments and these fit each other.
  void prepare(const PrefillBatch& batch, const AttentionShape& shape,
               const PrefillOptions& options = {});

  // Computes the attention of this rank's new tokens to all tokens that the mask lets them see.
  //
  // q [T, q_heads, head_dim], k [T, kv_heads, head_dim], v [T, kv_heads, value_dim] of the shape's
  // dtype, in the order of prefill_rows. kv: this rank's pages of the cached tokens, of the same
  // dtype. sink_H: a logit for each query head if the shape has a sink. out: O fp32 [T, q_heads,
  // value_dim] and the natural logarithm of its sum; a row that sees no key has O = 0, LSE = -inf.
  // The same call gives the same bits: products and sums are fp32 or wider, parts are merged by
  // rank. Throws InvalidArgument before anything is sent if a tensor of this rank does not fit, and
  // TransportError.
  void attend(const TensorView& q_THD, const TensorView& k_THD, const TensorView& v_THD,
              const PagedKv& kv, const PartialOutput& out, std::span<const float> sink_H = {});

  // Sends new keys and values to the ranks whose pages they belong to, for the next chunk of a
  // prompt or for decoding. Returns the rows that belong in this rank's pages. Sends every row that
  // belongs to another rank, K·(D + Dv)·k bytes each. Throws as attend does, and on all ranks if a
  // table is too short.
  [[nodiscard]] NewKv to_cache(const TensorView& k_THD, const TensorView& v_THD);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// ---------------------------------------------------------------------------------- prefill choice
//
// The choice of the mode to prefill a batch in: by the rule of the paper's authors, and by a
// simulation.

// The rates of one rank.
struct PrefillRates {
  double flops_per_s = 0;  // C: attention
  double bytes_per_s = 0;  // BW: sent to the next rank, while as much is received
  double message_s = 0;    // time of a message in addition to that of its bytes
};

// Chooses between passing keys and values and passing queries. Source: arXiv 2411.01783, the
// heuristic without the all-to-all: with T new of T + P tokens, K KV heads for Q heads and e bytes
// per element,
//   pass_kv if T >= N·C·K·e / (2·Q·BW) or T / (T + P) >= 2·K / Q, else pass_q.
// The first condition says that a block of keys arrives while another is computed, the second that
// it is no larger than the block of queries. Throws InvalidArgument unless rates are positive and T
// is.
[[nodiscard]] PrefillMode choose_prefill_mode(std::int64_t new_tokens, std::int64_t cached_tokens,
                                              std::int32_t num_ranks, const AttentionShape& shape,
                                              const PrefillRates& rates);

// Returns the seconds until the last rank has one layer's outputs, when computing and sending
// overlap. A step begins when its block has arrived and the step before is computed. A rank sends
// at its rate, message by message. Copies, merges and rounding cost nothing. Throws InvalidArgument
// unless rates are positive.
[[nodiscard]] double simulate_prefill_s(PrefillMode mode, const PrefillWork& work,
                                        const AttentionShape& shape, const PrefillRates& rates,
                                        Dtype wire = Dtype::kF32,
                                        std::optional<Dtype> kv_wire = {});
// Returns the mode of `modes` (at least one) that takes the least time, the first of equal ones.
[[nodiscard]] PrefillMode simulated_prefill_mode(
    std::span<const PrefillMode> modes, const PrefillWork& work, const AttentionShape& shape,
    const PrefillRates& rates, Dtype wire = Dtype::kF32, std::optional<Dtype> kv_wire = {});

// Measures a group as it is, all ranks at once: a tile of attention, and messages round the ring.
// Rates are medians of a few repeats on the slowest rank, so they are the same on all ranks.
// Collective. Takes a fraction of a second.
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

// Returns the batch as a workload: of every sequence its cached tokens, which have keys alone, then
// its new ones. Its home layout has cached tokens on the ranks whose pages hold them, and new ones
// where prefill_rows deals them. So a plan owns every token where it already lies. The plan moves
// only the data that its statistics count: keys and values (and queries) that a strategy computes
// elsewhere, and outputs on their way home. Ranges of the home layout end with every run of the
// cache's interleave, so a small interleave makes large plans. Throws as prefill_work does, and if
// there is no token.
[[nodiscard]] Workload prefill_workload(const PrefillBatch& batch, const AttentionShape& shape);

// Returns the plan of a batch, or null if there is none.
using PrefillPlanner =
    std::function<std::shared_ptr<const Plan>(const PrefillBatch&, const AttentionShape&)>;
// Returns a planner that calls `plan` with the batch's workload, and remembers the plans of the
// `most` batches that were asked for last: those whose layout, chunks, mask, shape and numbers of
// tokens differ. There is none where `plan` throws InvalidArgument, which is remembered, too.
// Copies share what they remember, and any thread may call them; one plans at a time, so ranks
// that are threads plan a batch once.
[[nodiscard]] PrefillPlanner remembered_plans(
    std::function<std::shared_ptr<const Plan>(const Workload&)> plan, std::size_t most = 256);

// One rank of a group that prefills by a plan. Collective, one thread at a time.
class PlannedPrefill {
 public:
  PlannedPrefill(Transport& transport, const AttentionKernel& kernel);
  ~PlannedPrefill();
  PlannedPrefill(PlannedPrefill&&) noexcept;
  PlannedPrefill& operator=(PlannedPrefill&&) noexcept;

  // Takes a plan of the batch's workload with one mask. Throws InvalidArgument if the plan owns a
  // token elsewhere than the batch has it, and as Executor::prepare does.
  void prepare(std::shared_ptr<const Plan> plan, const PrefillBatch& batch);

  // The same as PrefillGroup::attend, except that O is rounded to the plan's dtype before it is
  // written to `out`.
  void attend(const TensorView& q_THD, const TensorView& k_THD, const TensorView& v_THD,
              const PagedKv& kv, const PartialOutput& out, std::span<const float> sink_H = {});

  // The same as PrefillGroup::to_cache.
  [[nodiscard]] NewKv to_cache(const TensorView& k_THD, const TensorView& v_THD);

  [[nodiscard]] ExecutionStats last_stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contextile
