// A decoding step's attention over a cache whose tokens are sharded over ranks.
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
#include "contextile/extend/tensor.h"
#include "contextile/extend/transport.h"
#include "contextile/serving/kv_cache.h"
#include "contextile/workload.h"

namespace contextile {

// How ranks that hold the same KV heads and other tokens come to the attention of their own query
// heads (vLLM and SGLang, decode context parallelism):
//   kAgRs: queries of all ranks to all, attention of all heads to own tokens, LSE of all to all, a
//     sum of weighted outputs scattered over heads;
//   kA2a: the same, but every rank is sent its heads' outputs with their LSE and merges them;
//   kQReplicated: every rank has all queries already, then as kA2a.
enum class DecodeMode : std::uint8_t { kAgRs, kA2a, kQReplicated };

[[nodiscard]] std::string_view to_string(DecodeMode mode);  // "ag_rs", "a2a", "q_replicated"
[[nodiscard]] DecodeMode parse_decode_mode(std::string_view text);  // throws InvalidArgument

// Bytes that one rank sends in a step of a layer: `num_rows` queries, `heads` query heads a rank,
// elements of `wire` on their way.
[[nodiscard]] std::int64_t decode_bytes(DecodeMode mode, std::int32_t num_ranks,
                                        std::int64_t num_rows, std::int32_t heads,
                                        std::int32_t head_dim, std::int32_t value_dim, Dtype wire);

// Ranges of a request's tokens as a rank counts its own, for PagedRequest::keys.
[[nodiscard]] std::vector<Range> local_keys(const KvLayout& layout, Rank rank,
                                            std::span<const Range> tokens);

struct DecodeOptions {
  DecodeMode mode = DecodeMode::kA2a;
  PagedParams params;
  Dtype wire = Dtype::kF32;  // of queries and outputs on their way
  // Requests, in the order of their rows, are cut in at most so many groups; while the outputs of
  // one are on their way, the next one's attention is computed (HOP-B of Helix, arXiv 2507.07120).
  // The bytes and the bits are the same.
  std::int32_t hop_b_groups = 1;
};

// Attention whose last outputs are on their way to the ranks whose heads they are.
class PendingAttention {
 public:
  ~PendingAttention();  // waits for messages under way
  PendingAttention(PendingAttention&&) noexcept;
  PendingAttention& operator=(PendingAttention&&) noexcept;

  // Once: waits for them and writes what `out` of the call that began it names. Throws
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

  // Attention of this rank's query heads to the tokens of all ranks.
  //
  // The group's heads are by KV head, those of the first rank before those of the next. kv: this
  // rank's pages. q [rows, heads, head_dim] of f32, bf16 or f16: this rank's heads, as many on
  // every rank; with kQReplicated all of them, of which rank r has [heads·r/N, heads·(r+1)/N). out:
  // O fp32 [rows, heads of this rank, value_dim] and the natural logarithm of its sum; a row that
  // sees no key on any rank has O = 0, LSE = -inf. Throws InvalidArgument as PagedKernel::run does,
  // and TransportError.
  void attend(const DecodeOptions& options, const PagedKv& kv, const TensorView& q_NHD,
              std::span<const PagedRequest> requests, const PartialOutput& out);

  // The same, but for waiting for the last outputs: what `finish` does. Queries, requests and pages
  // may change meanwhile, and other calls be begun; `out` stays where it is. Every rank finishes
  // in the order in which it began.
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
// What is computed while the attention of some requests of a step moves between ranks: the next
// requests' attention is HOP-B of Helix (arXiv 2507.07120, 2.1.3); others' feed-forward what
// serving engines call two-batch overlap.

// What the exchange of partial outputs hides behind.
enum class HopBReading : std::uint8_t {
  kOff,          // nothing: all of the batch computes, then all of it moves
  kAttention,    // the attention of the next requests; projections and feed-forward as without
  kFeedForward,  // the feed-forward of the requests before, so requests take turns with whole
                 // layers
};
[[nodiscard]] std::string_view to_string(HopBReading reading);
// "off", "attention", "feed_forward". Throws InvalidArgument.
[[nodiscard]] HopBReading parse_hop_b(std::string_view text);

// ------------------------------------------------------------------------------------- shard merge
//
// Putting together what ranks computed of one softmax, each over its own keys.

// The base of the logarithm of a sum of exponentials. Attention backends differ in it, and numbers
// of one taken for those of the other are wrong without looking so; hence it is part of the type.
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

// [rows, heads] of such; rows as RowStats has them.
template <LseBase kBase>
struct LseRows {
  RowStats rows;
};

// One rank's part: O [rows, heads, dim] of f32, bf16 or f16, the average of its values, and LSE. A
// row that saw no key has LSE -inf (NaN and +inf, which some kernels leave there, count as such);
// its O is not read, whatever stands there.
template <LseBase kBase>
struct ShardResult {
  TensorView o_NHD;
  LseRows<kBase> lse_NH;
};

// dst := the merge of the shards (at least one) in the listed order, in fp32:
//   L = log(sum exp(L_r)),  O = sum exp(L_r - L)·O_r;
// rows that are empty everywhere become O = 0, L = -inf. dst overlaps no shard. Throws
// InvalidArgument where shapes differ.
template <LseBase kBase>
void merge_shards(const ShardResult<kBase>& dst, std::span<const ShardResult<kBase>> shards);

extern template void merge_shards(const ShardResult<LseBase::kE>&,
                                  std::span<const ShardResult<LseBase::kE>>);
extern template void merge_shards(const ShardResult<LseBase::kTwo>&,
                                  std::span<const ShardResult<LseBase::kTwo>>);

}  // namespace contextile
