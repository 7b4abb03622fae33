// Which pages of a sharded cache hold which tokens: tables of requests, prefixes they share, and
// what is thrown away when pages are short. Logical: it sees tokens and page numbers, no keys and
// no values, and gives every rank the same tables.
//
//   KvCache cache({.layout = {.num_ranks = 4}, .num_pages = 100'000});
//   const auto hit = cache.add(RequestId(7), prompt);
//   if (!hit) return 1;                                       // no room: nothing has changed
//   // compute tokens [*hit, prompt.size()), then every new one
//   if (!cache.append(RequestId(7), one_token)) return 1;     // no page is left; likewise
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "contextile/kv_layout.h"

namespace contextile {

using RequestId = Id<struct RequestTag>;

struct KvCacheOptions {
  KvLayout layout;
  std::int32_t num_pages = 0;  // of every rank; page 0 is one of them
  bool share_prefixes = true;
};

// A page whose tokens go on in two ways: every rank copies its part of `from` to `to` before the
// next tokens are written.
struct PageCopy {
  PageId from;
  PageId to;

  friend bool operator==(const PageCopy&, const PageCopy&) = default;
};

// Tokens of full pages are remembered in a radix tree, one edge for the tokens of one page of all
// ranks, and found again by later prompts; so hits come in multiples of layout.block_tokens(). A
// page is given back when no request uses it and stays in the tree until its room is needed: the
// longest unused goes first, of one request the last tokens before the first.
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

  // How many tokens of a prompt are there: at most all but the last, which has to be computed for
  // what comes next.
  [[nodiscard]] std::int64_t cached_tokens(std::span<const std::int32_t> tokens) const;
  // Begins a request with its prompt (at least one token); returns how many of its tokens are
  // there. None: too few pages are free.
  [[nodiscard]] std::optional<std::int64_t> add(RequestId request,
                                                std::span<const std::int32_t> tokens);
  // Tokens that follow. False: too few pages are free.
  [[nodiscard]] bool append(RequestId request, std::span<const std::int32_t> tokens);
  // Forgets all but the first `length` tokens (at least 1): drafts that were rejected.
  void truncate(RequestId request, std::int64_t length);
  // Another request with the same tokens so far; what each appends is its own.
  void fork(RequestId parent, RequestId child);
  // The request is over.
  void free(RequestId request);
  // Forgets every prefix that no request uses.
  void clear_prefixes();

  [[nodiscard]] bool contains(RequestId request) const;
  [[nodiscard]] std::int64_t length(RequestId request) const;
  [[nodiscard]] std::span<const std::int32_t> tokens(RequestId request) const;
  // The request's block table: the same on all ranks.
  [[nodiscard]] std::span<const PageId> table(RequestId request) const;
  // What is to be copied before the next tokens are written, in order; empties the list.
  [[nodiscard]] std::vector<PageCopy> take_copies();

  [[nodiscard]] std::int32_t num_requests() const;
  // Pages that no request uses, those of remembered prefixes included.
  [[nodiscard]] std::int32_t free_pages() const;
  // Pages of them that hold a remembered prefix.
  [[nodiscard]] std::int32_t unused_prefix_pages() const;
  // A digest of all tables, lengths and tokens: equal on ranks that did the same.
  [[nodiscard]] std::uint64_t digest() const;
  // Throws std::logic_error unless counts of users, the tree, free pages and tables agree. For
  // tests.
  void check_consistency() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace contextile
