#include "runtime/executor/check_terms.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace contextile {
namespace {

// Offsets and cells of tables are int32 numbers in kernels, and so are sums of two of them.
constexpr std::int64_t kMostCells = std::int64_t{1} << 30;

void check_table(std::string_view where, std::int64_t q_heads, const ScoreTerms& terms) {
  const auto num_buckets = static_cast<std::int64_t>(terms.num_buckets);
  CONTEXTILE_CHECK(std::cmp_equal(terms.table_HB.size(), q_heads * num_buckets),
                   "{}: expected {} heads of {} biases in the table, found {} biases", where,
                   q_heads, num_buckets, terms.table_HB.size());
  CONTEXTILE_CHECK(
      !terms.buckets.empty() && std::cmp_less_equal(terms.buckets.size(), kMostCells / q_heads),
      "{}: expected buckets of 1 to {} offsets, found {}", where, kMostCells / q_heads,
      terms.buckets.size());
  CONTEXTILE_CHECK(terms.first_offset >= -kMostCells && terms.first_offset <= kMostCells,
                   "{}: expected a first offset of {} to {}, found {}", where, -kMostCells,
                   kMostCells, terms.first_offset);
  const auto bad = std::ranges::find_if(
      terms.buckets, [&](std::int32_t bucket) { return bucket < 0 || bucket >= num_buckets; });
  CONTEXTILE_CHECK(bad == terms.buckets.end(), "{}: expected buckets below {}, found {}", where,
                   num_buckets, *bad);
}

// Kernels compute distances in 32 bits.
void check_positions(std::string_view where, const Plan& plan) {
  check_knows_positions(plan, where);
  for (const PositionSegment& segment : plan.positions) {
    const std::int64_t last = segment.first_position + segment.tokens.size() - 1;
    CONTEXTILE_CHECK(last <= kMostCells, "{}: expected positions up to {} with a bias, found {}",
                     where, kMostCells, last);
  }
}

}  // namespace

void check_terms(std::string_view where, const Plan& plan, const ScoreTerms& terms) {
  const auto q_heads = static_cast<std::int64_t>(plan.shape.q_heads);
  CONTEXTILE_CHECK(terms.dropout >= 0 && terms.dropout < 1,
                   "{}: expected dropout of at least 0 and below 1, found {}", where,
                   terms.dropout);
  CONTEXTILE_CHECK(terms.slopes_H.empty() || std::cmp_equal(terms.slopes_H.size(), q_heads),
                   "{}: expected a slope for each of {} query heads, found {}", where, q_heads,
                   terms.slopes_H.size());
  const auto odd =
      std::ranges::find_if_not(terms.slopes_H, [](float slope) { return std::isfinite(slope); });
  CONTEXTILE_CHECK(odd == terms.slopes_H.end(), "{}: expected finite slopes, found {}", where,
                   *odd);
  if (!terms.table_HB.empty() || !terms.buckets.empty()) check_table(where, q_heads, terms);
  if (terms.has_bias()) check_positions(where, plan);
  CONTEXTILE_CHECK(!terms.has_any() || plan.num_tokens() <= kMostCells,
                   "{}: expected at most {} tokens with a bias or dropout, found {}", where,
                   kMostCells, plan.num_tokens());
}

std::uint64_t digest_of(const ScoreTerms& terms) {
  if (!terms.has_any()) return 0;
  std::uint64_t digest = 1;
  const auto add = [&digest](const auto& values) {
    digest = XXH3_64bits_withSeed(std::data(values), std::size(values) * sizeof(values[0]), digest);
  };
  add(terms.slopes_H);
  add(terms.table_HB);
  add(terms.buckets);
  add(std::array{terms.num_buckets, terms.first_offset});
  add(std::array{terms.dropout});
  add(std::array{terms.dropout_seed});
  return digest == 0 ? 1 : digest;
}

std::uint64_t digest_of(std::span<const float> sink_H) {
  if (sink_H.empty()) return 0;
  const std::uint64_t digest = XXH3_64bits(sink_H.data(), sink_H.size_bytes());
  return digest == 0 ? 1 : digest;
}

void check_has_terms(std::string_view where, const AttentionKernel& kernel,
                     const ScoreTerms& terms) {
  CONTEXTILE_CHECK(!terms.has_any() || kernel.has_terms(),
                   "{}: expected no {}, which kernel {} does not have, found one", where,
                   terms.has_bias() ? "bias of scores" : "dropout", kernel.name());
}

}  // namespace contextile
