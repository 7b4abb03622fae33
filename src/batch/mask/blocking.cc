#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "contextile/mask.h"

namespace contextile {

BlockId Blocking::add(std::span<const Range> ranges, Role role) {
  const std::size_t block = roles_.size();
  CONTEXTILE_CHECK(block < static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()),
                   "blocks: expected at most {}, found one more",
                   std::numeric_limits<std::int32_t>::max());
  CONTEXTILE_CHECK(!ranges.empty(), "block {}: expected at least one range, found none", block);
  std::int64_t tokens = 0;
  for (const Range range : ranges) {
    CONTEXTILE_CHECK(0 <= range.begin && !range.empty() && range.end <= kMaxTokens,
                     "block {}: expected non-empty ranges inside [0, {}), found [{}, {})", block,
                     kMaxTokens, range.begin, range.end);
    tokens += range.size();
  }
  ranges_.insert(ranges_.end(), ranges.begin(), ranges.end());
  first_.push_back(ranges_.size());
  num_tokens_.push_back(tokens);
  roles_.push_back(role);
  return BlockId{static_cast<std::int32_t>(block)};
}

std::int64_t Blocking::total_tokens() const {
  return std::accumulate(num_tokens_.begin(), num_tokens_.end(), std::int64_t{0});
}

std::vector<RangeOfBlock> sorted_ranges(const Blocking& blocking) {
  std::vector<RangeOfBlock> sorted;
  sorted.reserve(blocking.num_ranges());
  for (std::int32_t b = 0; b < blocking.num_blocks(); ++b) {
    std::int64_t first_row = 0;
    for (const Range range : blocking.ranges(BlockId{b})) {
      sorted.push_back({range, BlockId{b}, first_row});
      first_row += range.size();
    }
  }
  const auto by_token = [](const RangeOfBlock& r) { return r.tokens.begin; };
  if (!std::ranges::is_sorted(sorted, {}, by_token)) {
    std::ranges::stable_sort(sorted, {}, by_token);
  }
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const RangeOfBlock& a = sorted[i - 1];
    const RangeOfBlock& b = sorted[i];
    CONTEXTILE_CHECK(
        a.tokens.end <= b.tokens.begin,
        "blocks: expected disjoint token ranges, found token {} in block {} ([{}, {})) "
        "and block {} ([{}, {}))",
        b.tokens.begin, a.block.value, a.tokens.begin, a.tokens.end, b.block.value, b.tokens.begin,
        b.tokens.end);
  }
  return sorted;
}

}  // namespace contextile
