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

#include "contextile/kernel.h"
#include "contextile/kv_layout.h"
#include "contextile/paged_attention.h"
#include "contextile/tensor.h"
#include "contextile/transport.h"
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

}  // namespace contextile
