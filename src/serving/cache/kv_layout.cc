#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "contextile/serving/kv_cache.h"

namespace contextile {
namespace {

constexpr std::int32_t kMost = 1 << 20;

void check_count(const char* name, std::int32_t count) {
  if (count < 1 || count > kMost) {
    throw InvalidArgument(fmt::format("{}: expected 1 to {}, found {}", name, kMost, count));
  }
}

void check_divides(const char* what, std::int64_t whole, std::int64_t part, const char* divisor) {
  if (whole % part != 0) {
    throw InvalidArgument(fmt::format("KV groups: expected {} {} to be a multiple of {} {}", what,
                                      whole, divisor, part));
  }
}

// Checks that the ranks of a group hold copies of the same KV heads.
void check_copies(const KvGroups& groups) {
  if (groups.mla || groups.kv_ranks == 1) return;
  const std::int32_t copies = groups.tp / groups.kv_heads;
  if (groups.kv_ranks > copies || copies % groups.kv_ranks != 0) {
    throw InvalidArgument(fmt::format(
        "KV groups: expected kv_ranks that divide the {} tensor-parallel ranks of each KV head "
        "(tp {}, {} KV heads), found {}: a group would hold different heads",
        copies, groups.tp, groups.kv_heads, groups.kv_ranks));
  }
}

}  // namespace

void check_kv_layout(const KvLayout& layout) {
  check_count("KV layout: ranks", layout.num_ranks);
  check_count("KV layout: page size", layout.page_size);
  check_count("KV layout: interleave", layout.interleave);
  // One rank has nothing to interleave.
  if (layout.num_ranks > 1 && layout.page_size % layout.interleave != 0) {
    throw InvalidArgument(
        fmt::format("KV layout: expected an interleave that divides the page size {}, found {}",
                    layout.page_size, layout.interleave));
  }
}

std::vector<std::int64_t> slots_of(const KvLayout& layout, std::span<const PageId> table, Rank rank,
                                   Range tokens) {
  if (tokens.begin < 0 || tokens.end < tokens.begin ||
      layout.num_blocks(tokens.end) > static_cast<std::int64_t>(table.size())) {
    throw InvalidArgument(
        fmt::format("slots: expected tokens of a table of {} blocks of {} tokens, found [{}, {})",
                    table.size(), layout.block_tokens(), tokens.begin, tokens.end));
  }
  std::vector<std::int64_t> slots;
  slots.reserve(static_cast<std::size_t>(tokens.size()));
  for (std::int64_t position = tokens.begin; position < tokens.end; ++position) {
    slots.push_back(layout.slot(table, rank, position));
  }
  return slots;
}

void check_kv_groups(const KvGroups& groups) {
  check_count("KV groups: tp", groups.tp);
  check_count("KV groups: prefill_ranks", groups.prefill_ranks);
  check_count("KV groups: kv_ranks", groups.kv_ranks);
  check_count("KV groups: query heads", groups.q_heads);
  check_count("KV groups: KV heads", groups.kv_heads);
  check_divides("query heads", groups.q_heads, groups.tp, "tp");
  if (!groups.mla) {
    check_divides("query heads", groups.q_heads, groups.kv_heads, "KV heads");
    if (groups.tp > groups.kv_heads) {
      check_divides("tp", groups.tp, groups.kv_heads, "KV heads");
    } else {
      check_divides("KV heads", groups.kv_heads, groups.tp, "tp");
    }
  }
  if (groups.prefill_ranks > 1) {
    const std::int64_t all = std::int64_t{groups.tp} * groups.prefill_ranks;
    if (groups.kv_ranks != 1 && groups.kv_ranks != groups.prefill_ranks && groups.kv_ranks != all) {
      throw InvalidArgument(
          fmt::format("KV groups: expected kv_ranks of 1, the {} prefill ranks or all {}, found {}",
                      groups.prefill_ranks, all, groups.kv_ranks));
    }
    // The prefill ranks hold the same heads; theirs are compared with tp's only if tp's ranks join
    // them.
    if (groups.kv_ranks == all && groups.kv_ranks != groups.prefill_ranks) {
      KvGroups inner = groups;
      inner.kv_ranks = groups.tp;
      check_copies(inner);
    }
    return;
  }
  check_divides("tp", groups.tp, groups.kv_ranks, "kv_ranks");
  check_copies(groups);
}

std::vector<std::vector<Rank>> kv_groups(const KvGroups& groups) {
  check_kv_groups(groups);
  // Rank p·tp + t is tensor-parallel rank t of prefill rank p; prefill ranks of a t are neighbours.
  std::vector<Rank> order;
  for (std::int32_t t = 0; t < groups.tp; ++t) {
    for (std::int32_t p = 0; p < groups.prefill_ranks; ++p) order.emplace_back(p * groups.tp + t);
  }
  std::vector<std::vector<Rank>> found;
  for (std::size_t first = 0; first < order.size();
       first += static_cast<std::size_t>(groups.kv_ranks)) {
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(first);
    found.emplace_back(begin, begin + groups.kv_ranks);
  }
  return found;
}

std::vector<std::int32_t> kv_head_of_ranks(const KvGroups& groups) {
  check_kv_groups(groups);
  std::vector<std::int32_t> heads;
  for (std::int64_t t = 0; t < groups.tp; ++t) {
    const std::int64_t head = groups.mla ? 0 : t * groups.kv_heads / groups.tp;
    heads.push_back(static_cast<std::int32_t>(head));
  }
  return heads;
}

}  // namespace contextile
