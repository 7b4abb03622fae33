#include "contextile/serving/kv_cache.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <utility>

#include "serving/cache/page_pool.h"
#include "serving/cache/prefix_tree.h"

namespace contextile {

struct KvCache::State {
  struct Request {
    std::vector<std::int32_t> tokens;
    std::vector<PageId> table;
  };

  explicit State(const KvCacheOptions& given)
      : options(given),
        pool(given.num_pages),
        prefixes(given.layout.block_tokens(), given.num_pages) {}

  [[nodiscard]] const Request& at(RequestId request) const {
    const auto found = requests.find(request);
    if (found == requests.end()) {
      throw InvalidArgument(
          fmt::format("KV cache: expected a request that was added, found {}", request.value));
    }
    return found->second;
  }
  [[nodiscard]] Request& at(RequestId request) {
    return const_cast<Request&>(std::as_const(*this).at(request));
  }
  void check_new(RequestId request) const {
    if (!request.valid() || requests.contains(request)) {
      throw InvalidArgument(
          fmt::format("KV cache: expected the number of a new request, at least 0, found {}{}",
                      request.value, request.valid() ? ", which is under way" : ""));
    }
  }

  // The pages of a prompt's whole blocks that are remembered; its last token is not looked up.
  [[nodiscard]] std::vector<PageId> find(std::span<const std::int32_t> tokens) const {
    if (!options.share_prefixes || tokens.empty()) return {};
    return prefixes.find(tokens.first(tokens.size() - 1));
  }

  // Takes the page that has been unused for longest; its contents are forgotten.
  PageId take() {
    const PageId page = pool.take();
    prefixes.erase(page);
    return page;
  }

  // The last first, so that the beginnings of prompts stay for longest. Pages that no prompt would
  // find or miss, such as the part of a block at the end of a request, are given out before all
  // others.
  void drop(std::span<const PageId> pages) {
    for (auto it = pages.rbegin(); it != pages.rend(); ++it) {
      if (!it->valid()) continue;
      if (pool.users(*it) == 1 && prefixes.is_redundant(*it)) {
        prefixes.erase(*it);
        pool.discard(*it);
      } else {
        pool.drop(*it);
      }
    }
  }

  [[nodiscard]] std::int64_t num_whole(const Request& request) const {
    return static_cast<std::int64_t>(request.tokens.size()) / options.layout.block_tokens();
  }

  // The first block that any token from a position on sees.
  [[nodiscard]] std::int64_t first_seen(std::int64_t position) const {
    if (options.window == 0) return 0;
    return std::max<std::int64_t>(0, position + 1 - options.window) / options.layout.block_tokens();
  }
  // The request's pages that no token from a position on sees.
  [[nodiscard]] std::span<PageId> behind(Request& request, std::int64_t position) const {
    const auto end = static_cast<std::size_t>(
        std::min(first_seen(position), static_cast<std::int64_t>(request.table.size())));
    std::size_t begin = end;
    while (begin > 0 && request.table[begin - 1].valid()) --begin;
    return std::span(request.table).subspan(begin, end - begin);
  }

  // Remembers the blocks of the request's table from block `first` on.
  void remember(const Request& request, std::int64_t first) {
    if (options.share_prefixes) prefixes.insert(request.tokens, request.table, first);
  }

  KvCacheOptions options;
  PagePool pool;
  PrefixTree prefixes;
  std::map<RequestId, Request> requests;
  std::vector<PageCopy> copies;
};

std::int64_t most_pages(const KvCacheOptions& options, std::int64_t length,
                        std::int64_t step_tokens) {
  const std::int64_t all = options.layout.num_blocks(length);
  if (options.window == 0) return all;
  // Tokens that a step reads or writes begin anywhere in a block.
  const std::int64_t seen = options.window - 1 + step_tokens;
  return std::min(all, options.layout.num_blocks(seen - 1) + 1);
}

KvCache::KvCache(const KvCacheOptions& options) {
  check_kv_layout(options.layout);
  if (options.window < 0) {
    throw InvalidArgument(
        fmt::format("KV cache: expected a window of 0 or more, found {}", options.window));
  }
  if (options.num_pages < 1) {
    throw InvalidArgument(
        fmt::format("KV cache: expected at least 1 page, found {}", options.num_pages));
  }
  state_ = std::make_unique<State>(options);
}
KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

const KvLayout& KvCache::layout() const { return state_->options.layout; }

std::int64_t KvCache::cached_tokens(std::span<const std::int32_t> tokens) const {
  return static_cast<std::int64_t>(state_->find(tokens).size()) * layout().block_tokens();
}

std::optional<std::int64_t> KvCache::add(RequestId request, std::span<const std::int32_t> tokens) {
  State& state = *state_;
  state.check_new(request);
  if (tokens.empty()) {
    throw InvalidArgument(
        fmt::format("KV cache: expected a prompt of at least 1 token, found none, of request {}",
                    request.value));
  }
  std::vector<PageId> table = state.find(tokens);
  const auto num_hits = static_cast<std::int64_t>(table.size());
  const std::int64_t num_unseen = state.first_seen(num_hits * layout().block_tokens());
  std::fill_n(table.begin(), num_unseen, PageId());
  const std::int64_t num_blocks = layout().num_blocks(static_cast<std::int64_t>(tokens.size()));
  const auto unused = std::count_if(table.begin(), table.end(), [&](PageId page) {
    return page.valid() && state.pool.users(page) == 0;
  });
  if (num_blocks - num_hits > state.pool.num_free() - unused) return std::nullopt;
  for (const PageId page : table) {
    if (page.valid()) state.pool.use(page);
  }
  while (static_cast<std::int64_t>(table.size()) < num_blocks) table.push_back(state.take());
  State::Request& added = state.requests[request];
  added.tokens.assign(tokens.begin(), tokens.end());
  added.table = std::move(table);
  state.remember(added, num_hits);
  return num_hits * layout().block_tokens();
}

bool KvCache::append(RequestId request, std::span<const std::int32_t> tokens,
                     std::optional<std::int64_t> oldest) {
  State& state = *state_;
  State::Request& its = state.at(request);
  if (tokens.empty()) return true;
  const std::int64_t whole = state.num_whole(its);
  const auto length = static_cast<std::int64_t>(its.tokens.size());
  const std::int64_t missing =
      layout().num_blocks(length + static_cast<std::int64_t>(tokens.size())) -
      static_cast<std::int64_t>(its.table.size());
  // The page that is written must belong to this request alone and hold nothing that is remembered.
  const bool is_open = length % layout().block_tokens() != 0;
  const bool copies = is_open && state.pool.users(its.table.back()) > 1;
  const std::span<PageId> behind = state.behind(its, std::min(oldest.value_or(length), length));
  const auto given_back = std::count_if(behind.begin(), behind.end(),
                                        [&](PageId page) { return state.pool.users(page) == 1; });
  if (missing + (copies ? 1 : 0) > state.pool.num_free() + given_back) return false;
  state.drop(behind);
  std::ranges::fill(behind, PageId());
  if (copies) {
    const PageId shared = std::exchange(its.table.back(), state.take());
    state.copies.push_back({shared, its.table.back()});
    state.pool.drop(shared);
  } else if (is_open) {
    state.prefixes.erase(its.table.back());
  }
  for (std::int64_t i = 0; i < missing; ++i) its.table.push_back(state.take());
  its.tokens.insert(its.tokens.end(), tokens.begin(), tokens.end());
  state.remember(its, whole);
  return true;
}

void KvCache::truncate(RequestId request, std::int64_t length) {
  State::Request& its = state_->at(request);
  if (length < 1 || length > static_cast<std::int64_t>(its.tokens.size())) {
    throw InvalidArgument(
        fmt::format("KV cache: expected a length of 1 to {} tokens, found {}, of request {}",
                    its.tokens.size(), length, request.value));
  }
  const auto first_held = std::ranges::find_if(its.table, &PageId::valid) - its.table.begin();
  if (state_->first_seen(length) < first_held) {
    throw InvalidArgument(
        fmt::format("KV cache: expected a length whose window of {} tokens is still there, found "
                    "{}, of request {} without its first {} pages",
                    state_->options.window, length, request.value, first_held));
  }
  const auto num_blocks = static_cast<std::size_t>(layout().num_blocks(length));
  state_->drop(std::span(its.table).subspan(num_blocks));
  its.table.resize(num_blocks);
  its.tokens.resize(static_cast<std::size_t>(length));
}

void KvCache::fork(RequestId parent, RequestId child) {
  State& state = *state_;
  state.check_new(child);
  const State::Request copied = state.at(parent);
  for (const PageId page : copied.table) {
    if (page.valid()) state.pool.use(page);
  }
  state.requests.emplace(child, copied);
}

void KvCache::free(RequestId request) {
  state_->drop(state_->at(request).table);
  state_->requests.erase(request);
}

void KvCache::clear_prefixes() {
  for (std::int32_t page = 0; page < state_->pool.num_pages(); ++page) {
    if (state_->pool.users(PageId(page)) == 0) state_->prefixes.erase(PageId(page));
  }
}

bool KvCache::contains(RequestId request) const { return state_->requests.contains(request); }
std::int64_t KvCache::length(RequestId request) const {
  return static_cast<std::int64_t>(state_->at(request).tokens.size());
}
std::span<const std::int32_t> KvCache::tokens(RequestId request) const {
  return std::as_const(*state_).at(request).tokens;
}
std::span<const PageId> KvCache::table(RequestId request) const {
  return std::as_const(*state_).at(request).table;
}
std::vector<PageCopy> KvCache::take_copies() { return std::exchange(state_->copies, {}); }

std::int32_t KvCache::num_requests() const {
  return static_cast<std::int32_t>(state_->requests.size());
}
std::int32_t KvCache::num_pages(RequestId request) const {
  const std::vector<PageId>& table = std::as_const(*state_).at(request).table;
  return static_cast<std::int32_t>(std::ranges::count_if(table, &PageId::valid));
}
std::int32_t KvCache::free_pages() const { return state_->pool.num_free(); }
std::int32_t KvCache::unused_prefix_pages() const {
  std::int32_t count = 0;
  for (std::int32_t page = 0; page < state_->pool.num_pages(); ++page) {
    const PageId id(page);
    count += state_->pool.users(id) == 0 && state_->prefixes.holds(id) ? 1 : 0;
  }
  return count;
}

std::uint64_t KvCache::digest() const {
  std::uint64_t digest = 0;
  const auto take_in = [&](const auto& numbers) {
    digest = XXH3_64bits_withSeed(numbers.data(), numbers.size() * sizeof(numbers[0]), digest);
  };
  for (const auto& [id, request] : state_->requests) {
    take_in(std::vector<std::uint64_t>{static_cast<std::uint64_t>(id.value), request.tokens.size(),
                                       request.table.size()});
    take_in(request.tokens);
    take_in(request.table);
  }
  return digest;
}

void KvCache::check_consistency() const {
  state_->pool.check_consistency();
  state_->prefixes.check_consistency();
  std::vector<std::int32_t> users(static_cast<std::size_t>(state_->pool.num_pages()), 0);
  for (const auto& [id, request] : state_->requests) {
    if (static_cast<std::int64_t>(request.table.size()) != layout().num_blocks(length(id))) {
      throw std::logic_error("KV cache: a table is not as long as its request");
    }
    for (const PageId page : request.table) {
      if (page.valid()) ++users[page.index()];
    }
  }
  for (std::int32_t page = 0; page < state_->pool.num_pages(); ++page) {
    if (users[static_cast<std::size_t>(page)] != state_->pool.users(PageId(page))) {
      throw std::logic_error("KV cache: the users of a page are miscounted");
    }
  }
}

}  // namespace contextile
