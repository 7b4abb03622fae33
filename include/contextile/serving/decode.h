// The attention of a decoding step over a cache whose tokens are sharded over ranks.
//
//   DecodeGroup group(transport, find_paged_kernel());
//   group.attend({.mode = DecodeMode::kA2a}, kv, q, requests, {out.view(), lse.stats()});
//
// Legend of suffixes: N query rows, H heads of this rank, D dim.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/extend/kernel.h"
#include "contextile/extend/paged_attention.h"
#include "contextile/extend/transport.h"
#include "contextile/serving/kv_cache.h"
#include "contextile/tensor.h"
#include "contextile/workload.h"

namespace contextile {

// How ranks that hold the same KV heads and different tokens compute the attention of their own
// query heads (vLLM and SGLang, decode context parallelism):
//   kAgRs: queries of all ranks go to all; each computes attention of all heads to its own tokens;
//     LSE of all go to all; a sum of weighted outputs is scattered over heads;
//   kA2a: the same, but every rank receives its heads' outputs with their LSE and merges them;
//   kQReplicated: every rank has all queries already, then the same as kA2a.
enum class DecodeMode : std::uint8_t { kAgRs, kA2a, kQReplicated };

[[nodiscard]] std::string_view to_string(DecodeMode mode);  // "ag_rs", "a2a", "q_replicated"
[[nodiscard]] DecodeMode parse_decode_mode(std::string_view text);  // throws InvalidArgument

// Returns the bytes that one rank sends for one layer of a step, with `num_rows` queries, `heads`
// query heads per rank, and sent elements of dtype `wire`.
[[nodiscard]] std::int64_t decode_bytes(DecodeMode mode, std::int32_t num_ranks,
                                        std::int64_t num_rows, std::int32_t heads,
                                        std::int32_t head_dim, std::int32_t value_dim, Dtype wire);

// Returns ranges of a request's tokens as a rank counts its own tokens, for PagedRequest::keys.
[[nodiscard]] std::vector<Range> local_keys(const KvLayout& layout, Rank rank,
                                            std::span<const Range> tokens);

struct DecodeOptions {
  DecodeMode mode = DecodeMode::kA2a;
  PagedParams params;
  Dtype wire = Dtype::kF32;  // of queries and outputs that are sent
  // Most groups that requests, in the order of their rows, are cut into. While the outputs of one
  // group are sent, the next group's attention is computed (HOP-B of Helix, arXiv 2507.07120). The
  // bytes sent and the bits of the results are the same.
  std::int32_t hop_b_groups = 1;
};

// Attention whose last outputs are being sent to the ranks that own their heads.
class PendingAttention {
 public:
  ~PendingAttention();  // waits for messages in flight
  PendingAttention(PendingAttention&&) noexcept;
  PendingAttention& operator=(PendingAttention&&) noexcept;

  // Waits for the outputs and writes them to `out` of the call that began it. Call it once. Throws
  // TransportError.
  void finish();

 private:
  friend class DecodeGroup;
  struct State;
  explicit PendingAttention(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// One rank of a group that shares a cache. Collective: every rank calls with the same options,
// requests and rows, and its own tables' keys. One thread at a time.
class DecodeGroup {
 public:
  DecodeGroup(Transport& transport, const PagedKernel& kernel);

  // Computes the attention of this rank's query heads to the tokens of all ranks.
  //
  // The group's heads are ordered by KV head, those of the first rank before those of the next. kv:
  // this rank's pages. q [rows, heads, head_dim] of f32, bf16 or f16: this rank's heads, as many on
  // every rank; with kQReplicated all of them, of which rank r has [heads·r/N, heads·(r+1)/N). out:
  // O fp32 [rows, heads of this rank, value_dim] and the natural logarithm of its sum; a row that
  // sees no key on any rank has O = 0, LSE = -inf. Throws InvalidArgument as PagedKernel::run does,
  // and TransportError.
  void attend(const DecodeOptions& options, const PagedKv& kv, const TensorView& q_NHD,
              std::span<const PagedRequest> requests, const PartialOutput& out);

  // The same, except that it does not wait for the last outputs; `finish` does. Queries, requests
  // and pages may change meanwhile, and other calls may begin; `out` must stay in place. Every rank
  // must finish calls in the order in which it began them.
  [[nodiscard]] PendingAttention begin(const DecodeOptions& options, const PagedKv& kv,
                                       const TensorView& q_NHD,
                                       std::span<const PagedRequest> requests,
                                       const PartialOutput& out);

 private:
  Transport& transport_;
  const PagedKernel& kernel_;
};

// ------------------------------------------------------------------------------------------- hop b
//
// The work that is computed while the attention of some requests of a step moves between ranks.
// Computing the next requests' attention is HOP-B of Helix (arXiv 2507.07120, 2.1.3). Computing
// other requests' feed-forward is what serving engines call two-batch overlap.

// The work that hides the exchange of partial outputs.
enum class HopBReading : std::uint8_t {
  kOff,          // nothing: all of the batch computes, then all of it moves
  kAttention,    // the attention of the next requests; projections and feed-forward are as without
  kFeedForward,  // the feed-forward of the requests before, so groups of requests alternate in
                 // whole layers
};
[[nodiscard]] std::string_view to_string(HopBReading reading);
// Parses "off", "attention" or "feed_forward". Throws InvalidArgument.
[[nodiscard]] HopBReading parse_hop_b(std::string_view text);

// ------------------------------------------------------------------------------------- shard merge
//
// Merging of the results of one softmax that ranks computed, each over its own keys.

// The base of the logarithm of a sum of exponentials. Attention backends differ in it, and numbers
// of one base taken for those of the other are wrong without looking wrong. Therefore the base is
// part of the type.
enum class LseBase : std::uint8_t { kE, kTwo };

template <LseBase kBase>
struct Lse {
  float value = 0;
};
using NaturalLse = Lse<LseBase::kE>;
using BinaryLse = Lse<LseBase::kTwo>;

[[nodiscard]] constexpr NaturalLse to_natural(BinaryLse lse) {
  return {lse.value * 0.69314718055994531F};
}
[[nodiscard]] constexpr BinaryLse to_binary(NaturalLse lse) {
  return {lse.value * 1.4426950408889634F};
}

// An array [rows, heads] of them; rows as in RowStats.
template <LseBase kBase>
struct LseRows {
  RowStats rows;
};

// One rank's part: O [rows, heads, dim] of f32, bf16 or f16, the average of its values, and LSE. A
// row that saw no key has LSE -inf (NaN and +inf, which some kernels write there, count as such);
// its O is not read, whatever its memory holds.
template <LseBase kBase>
struct ShardResult {
  TensorView o_NHD;
  LseRows<kBase> lse_NH;
};

// dst := the merge of the shards (at least one) in the listed order, in fp32:
//   L = log(sum exp(L_r)),  O = sum exp(L_r - L)·O_r.
// Rows that are empty everywhere become O = 0, L = -inf. dst must not overlap a shard. Throws
// InvalidArgument if shapes differ.
template <LseBase kBase>
void merge_shards(const ShardResult<kBase>& dst, std::span<const ShardResult<kBase>> shards);

extern template void merge_shards(const ShardResult<LseBase::kE>&,
                                  std::span<const ShardResult<LseBase::kE>>);
extern template void merge_shards(const ShardResult<LseBase::kTwo>&,
                                  std::span<const ShardResult<LseBase::kTwo>>);

}  // namespace contextile
