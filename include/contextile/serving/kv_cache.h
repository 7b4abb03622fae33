// A sharded KV cache's bookkeeping: which pages hold which tokens, the prefixes that requests
// share, and what is evicted when pages are short. It is logical: it sees tokens and page numbers,
// no keys and no values, and makes the same tables on every rank.
//
//   KvCache cache({.layout = {.num_ranks = 4}, .num_pages = 100'000});
//   const auto hit = cache.add(RequestId(7), prompt);
//   if (!hit) return 1;                                       // no room: nothing has changed
//   // compute tokens [*hit, prompt.size()), then every new one
//   if (!cache.append(RequestId(7), one_token)) return 1;     // no page is left; likewise
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// --------------------------------------------------------------------------------------- kv layout
//
// The place of the keys and values of a request in a cache that is sharded over ranks, and the
// groups of ranks that may share a cache. This is the only place where these formulas are defined.
//
//   const KvLayout layout = {.num_ranks = 4, .interleave = 1, .page_size = 16};
//   const std::int64_t tokens_here = layout.local_length(rank, 1'000'000);

// The layout of a sharded cache. Tokens of a request go to N ranks in runs of s tokens,
// round-robin. Every rank keeps its own tokens in pages of B tokens. One block table, the same on
// all ranks, maps them: entry j is the page of the tokens [j·B·N, (j + 1)·B·N), of which every rank
// has B. So all ranks agree on every table without communication, and appending to a page that is
// not full needs no special case.
//
// s = 1 spreads single tokens (the default of vLLM and SGLang), s = B whole pages. A page as large
// as a rank's share of the longest request (s = B) is the contiguous layout.
struct KvLayout {
  std::int32_t num_ranks = 1;   // N
  std::int32_t interleave = 1;  // s, tokens; divides the page size if there are several ranks
  std::int32_t page_size = 16;  // B, tokens

  // Tokens of all ranks that one entry of a block table covers: B·N.
  [[nodiscard]] constexpr std::int64_t block_tokens() const {
    return std::int64_t{page_size} * num_ranks;
  }
  // Number of entries of the table of a request of `length` tokens.
  [[nodiscard]] constexpr std::int64_t num_blocks(std::int64_t length) const {
    return (length + block_tokens() - 1) / block_tokens();
  }

  // The rank that holds the token at a position of the request, and the index of the token among
  // the rank's own.
  [[nodiscard]] constexpr Rank owner(std::int64_t position) const {
    return Rank(static_cast<std::int32_t>(position / interleave % num_ranks));
  }
  [[nodiscard]] constexpr std::int64_t local(std::int64_t position) const {
    return position / turn() * interleave + position % interleave;
  }
  // The position of a rank's token: the inverse of `local`.
  [[nodiscard]] constexpr std::int64_t global(Rank rank, std::int64_t local) const {
    return local / interleave * turn() + std::int64_t{rank.value} * interleave + local % interleave;
  }

  // Number of the first `length` tokens that the rank holds. Ranks differ by at most s.
  [[nodiscard]] constexpr std::int64_t local_length(Rank rank, std::int64_t length) const {
    const std::int64_t rest = length % turn() - std::int64_t{rank.value} * interleave;
    return length / turn() * interleave + (rest < 0 ? 0 : rest > interleave ? interleave : rest);
  }
  // Number of the tokens [begin, end) that the rank holds.
  [[nodiscard]] constexpr std::int64_t local_length(Rank rank, Range tokens) const {
    return local_length(rank, tokens.end) - local_length(rank, tokens.begin);
  }

  // The place of the token in the rank's pages, counted in tokens over all pages; -1: on another
  // rank. The table must have an entry for the position.
  [[nodiscard]] constexpr std::int64_t slot(std::span<const PageId> table, Rank rank,
                                            std::int64_t position) const {
    if (owner(position) != rank) return -1;
    const std::int64_t at = local(position);
    return std::int64_t{table[static_cast<std::size_t>(at / page_size)].value} * page_size +
           at % page_size;
  }

  friend bool operator==(const KvLayout&, const KvLayout&) = default;

 private:
  // Length of one round-robin cycle over all ranks, in tokens.
  [[nodiscard]] constexpr std::int64_t turn() const { return std::int64_t{interleave} * num_ranks; }
};

// Throws InvalidArgument unless counts are 1 to 2^20 and the interleave divides the page size if
// there are several ranks.
void check_kv_layout(const KvLayout& layout);

// Returns the slots on one rank of the tokens [begin, end) of a request, -1 for those of other
// ranks: where the rank writes its keys and values. Throws InvalidArgument if the table is too
// short.
[[nodiscard]] std::vector<std::int64_t> slots_of(const KvLayout& layout,
                                                 std::span<const PageId> table, Rank rank,
                                                 Range tokens);

// The ranks of a serving job: `prefill_ranks` x `tp`, of which the inner ones split heads. Groups
// of `kv_ranks` neighbours share the KV heads of their layers and shard the tokens.
struct KvGroups {
  std::int32_t tp = 1;             // tensor-parallel ranks
  std::int32_t prefill_ranks = 1;  // of prefill context parallelism, each with tp ranks
  std::int32_t kv_ranks = 1;       // N: number of ranks that the tokens of a cache are sharded over
  std::int32_t q_heads = 32;
  std::int32_t kv_heads = 8;
  bool mla = false;  // one latent KV head that all ranks need

  friend bool operator==(const KvGroups&, const KvGroups&) = default;
};

// Throws InvalidArgument naming the rule that is broken: tp divides the query heads; kv_heads
// divides tp or tp divides kv_heads; kv_heads divides q_heads. kv_ranks divides tp, or is
// prefill_ranks or tp·prefill_ranks. Without MLA, kv_ranks inside tp divides tp / kv_heads (so it
// is at most that), because the ranks of a group must hold the same KV heads. vLLM accepts some
// settings that break this, for example (tp, kv_ranks, kv_heads) = (12, 4, 2) and (16, 4, 3), and
// attends to wrong keys.
void check_kv_groups(const KvGroups& groups);

// Returns the ranks of every group, in the order in which they hold tokens. Throws as
// check_kv_groups does.
[[nodiscard]] std::vector<std::vector<Rank>> kv_groups(const KvGroups& groups);
// Returns the first KV head of every tensor-parallel rank; with MLA 0.
[[nodiscard]] std::vector<std::int32_t> kv_head_of_ranks(const KvGroups& groups);

// ---------------------------------------------------------------------------------------- kv cache

using RequestId = Id<struct RequestTag>;

struct KvCacheOptions {
  KvLayout layout;
  std::int32_t num_pages = 0;  // pages of every rank; page 0 is one of them
  bool share_prefixes = true;
  // Number of tokens that a token sees in the layer that sees most, itself included. Pages behind
  // it are freed while their request goes on. 0: a layer sees all tokens.
  std::int64_t window = 0;
};

// Returns the most pages that a request of `length` tokens holds at a time if it is added and
// appended to in parts of at most `step_tokens` new tokens.
[[nodiscard]] std::int64_t most_pages(const KvCacheOptions& options, std::int64_t length,
                                      std::int64_t step_tokens);

// A page that two requests continue differently: every rank copies its part of `from` to `to`
// before the next tokens are written.
struct PageCopy {
  PageId from;
  PageId to;

  friend bool operator==(const PageCopy&, const PageCopy&) = default;
};

// The cache of requests and prefixes. Tokens of full pages are remembered in a radix tree, with one
// edge for the tokens of one page of all ranks, and later prompts find them again. So hits are
// multiples of layout.block_tokens(). A page that no request uses is free, and stays in the tree
// until its space is needed. Pages that no later prompt can find go first: parts of pages, and
// second copies of a prefix. The longest unused page is next, and of one request the last tokens
// before the first.
//
// A call that fails, by its return value or by throwing InvalidArgument, changes nothing. One
// thread at a time.
class KvCache {
 public:
  explicit KvCache(const KvCacheOptions& options);
  ~KvCache();
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;

  [[nodiscard]] const KvLayout& layout() const;

  // Number of tokens of a prompt that are cached: at most all except the last, which has to be
  // computed to get the next token.
  [[nodiscard]] std::int64_t cached_tokens(std::span<const std::int32_t> tokens) const;
  // Begins a request with its prompt (at least one token). Returns the number of its tokens that
  // are cached, or none if too few pages are free.
  [[nodiscard]] std::optional<std::int64_t> add(RequestId request,
                                                std::span<const std::int32_t> tokens);
  // Appends tokens to a request. Returns false if too few pages are free. Pages stay that the token
  // at `oldest` sees, the first one that has still to be computed; by default, it is the first of
  // these tokens.
  [[nodiscard]] bool append(RequestId request, std::span<const std::int32_t> tokens,
                            std::optional<std::int64_t> oldest = {});
  // Forgets all tokens except the first `length` (at least 1), for example drafts that were
  // rejected. Throws if the next token would see a page that was freed
  // behind the window.
  void truncate(RequestId request, std::int64_t length);
  // Begins another request with the same tokens so far; tokens that each appends are its own.
  void fork(RequestId parent, RequestId child);
  // Ends the request.
  void free(RequestId request);
  // Forgets every prefix that no request uses.
  void clear_prefixes();

  [[nodiscard]] bool contains(RequestId request) const;
  [[nodiscard]] std::int64_t length(RequestId request) const;
  [[nodiscard]] std::span<const std::int32_t> tokens(RequestId request) const;
  // The request's block table: the same on all ranks. Entries behind the window are not valid.
  [[nodiscard]] std::span<const PageId> table(RequestId request) const;
  // Returns the copies to make before the next tokens are written, in order, and empties the list.
  [[nodiscard]] std::vector<PageCopy> take_copies();

  [[nodiscard]] std::int32_t num_requests() const;
  // Number of pages that the request holds, shared ones included.
  [[nodiscard]] std::int32_t num_pages(RequestId request) const;
  // Number of pages that no request uses, including those of remembered prefixes.
  [[nodiscard]] std::int32_t free_pages() const;
  // Number of these pages that hold a remembered prefix.
  [[nodiscard]] std::int32_t unused_prefix_pages() const;
  // Returns a digest of all tables, lengths and tokens. It is equal on ranks that made the same
  // calls.
  [[nodiscard]] std::uint64_t digest() const;
  // Throws std::logic_error unless counts of users, the tree, free pages and tables agree. For
  // tests.
  void check_consistency() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contextile
