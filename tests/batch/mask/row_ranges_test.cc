#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "contextile/mask.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;
using Rule = MaskSpec::Rule;

// The rows of a matrix as ranges, some cut in two, all in random order.
std::vector<std::vector<Range>> rows_of(const DenseMask& dense, Rng& rng) {
  std::vector<std::vector<Range>> rows(static_cast<std::size_t>(dense.num_queries));
  for (std::int64_t q = 0; q < dense.num_queries; ++q) {
    std::vector<Range>& row = rows[static_cast<std::size_t>(q)];
    for (std::int64_t k = 0; k < dense.num_keys; ++k) {
      if (dense.at(q, k) == 0) continue;
      if (!row.empty() && row.back().end == k && random_chance(rng, 0.9)) {
        ++row.back().end;
      } else {
        row.push_back({k, k + 1});
      }
    }
    for (std::size_t i = row.size(); i > 1; --i) std::swap(row[i - 1], row[rng.next() % i]);
  }
  return rows;
}

DenseMask random_matrix(Rng& rng) {
  DenseMask dense(random_between(rng, 0, 20), random_between(rng, 0, 20));
  const double density = rng.uniform();
  for (std::uint8_t& cell : dense.counts) cell = random_chance(rng, density) ? 1 : 0;
  return dense;
}

TEST(MaskFromDense, HoldsExactlyTheMatrix) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const DenseMask dense = random_matrix(rng);
    const Mask mask = mask_from_dense(dense.counts, dense.num_queries, dense.num_keys);
    ASSERT_EQ(dense_of_bands(mask.bands, dense.num_queries, dense.num_keys), dense);
    ASSERT_EQ(find_overlap(mask.bands), std::nullopt);
  }
}

TEST(MaskFromDense, AnyNonZeroByteIsAPair) {
  const std::vector<std::uint8_t> dense = {0, 255, 2, 0};
  EXPECT_EQ(mask_from_dense(dense, 2, 2).num_pairs(), 2);
  EXPECT_THROW((void)mask_from_dense(dense, 2, 3), InvalidArgument);
  EXPECT_THROW((void)mask_from_dense(dense, -2, -2), InvalidArgument);
}

TEST(MaskFromRowRanges, HoldsExactlyTheRows) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const DenseMask dense = random_matrix(rng);
    const Mask mask = mask_from_row_ranges(rows_of(dense, rng));
    ASSERT_EQ(dense_of_bands(mask.bands, dense.num_queries, dense.num_keys), dense);
  }
}

TEST(MaskFromRowRanges, GivesBackTheRules) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed);
    const std::vector<Range> sequences = laid_end_to_end(random_lengths(rng, 3, 30));
    const MaskSpec spec = random_mask_spec(rng, 30);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, to_string(spec)));
    const DenseMask dense = dense_of_rule(spec, sequences);
    const Mask mask = mask_from_row_ranges(rows_of(dense, rng));
    ASSERT_EQ(dense_of_bands(mask.bands, dense.num_queries, dense.num_keys), dense);
  }
}

std::size_t num_bands_of(const MaskSpec& spec, std::int64_t length) {
  Rng rng(1);
  const std::vector<Range> sequences = {{0, length}};
  return mask_from_row_ranges(rows_of(dense_of_rule(spec, sequences), rng)).bands.size();
}

TEST(MaskFromRowRanges, FindsTheBandsOfARule) {
  EXPECT_EQ(num_bands_of({.rule = Rule::kFull}, 200), 1U);
  EXPECT_EQ(num_bands_of({.rule = Rule::kCausal}, 200), 1U);
  EXPECT_EQ(num_bands_of({.rule = Rule::kSlidingWindow, .window = 16}, 200), 1U);
  EXPECT_EQ(num_bands_of({.rule = Rule::kLambda, .window = 16, .sink = 8}, 200), 3U);
  EXPECT_LE(
      num_bands_of({.rule = Rule::kCausalBlockwise, .window = 2, .sink = 1, .block = 16}, 200), 5U);
  EXPECT_LE(num_bands_of({.rule = Rule::kSharedQuestion}, 200), 9U);
  EXPECT_LE(num_bands_of({.rule = Rule::kPrefixLm, .prefix = 32}, 200), 2U);
  EXPECT_EQ(num_bands_of({.rule = Rule::kChunked, .chunk = 50}, 200), 4U);
}

TEST(MaskFromRowRanges, ReadsOneBandBackAsOne) {
  Rng rng(11);
  for (int trial = 0; trial < 1000; ++trial) {
    SCOPED_TRACE(fmt::format("trial {}", trial));
    const Band band = random_band(rng, 20, 20);
    const DenseMask dense = dense_of_bands({&band, 1}, 20, 20);
    const std::size_t num_bands = mask_from_dense(dense.counts, 20, 20).bands.size();
    ASSERT_EQ(num_bands, dense.num_pairs() == 0 ? 0U : 1U);
  }
}

TEST(MaskFromRowRanges, TakesKeysBeyondTheQueries) {
  const std::vector<std::vector<Range>> rows = {{{0, 100}}, {}, {{50, 101}}};
  EXPECT_EQ(mask_from_row_ranges(rows).num_pairs(), 151);
  EXPECT_TRUE(mask_from_row_ranges({}).bands.empty());
}

TEST(MaskFromRowRanges, NamesTheBadRow) {
  const auto error_of = [](std::vector<std::vector<Range>> rows) -> std::string {
    try {
      (void)mask_from_row_ranges(rows);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of({{}, {{3, 6}, {0, 4}}}), HasSubstr("row 1: expected disjoint key ranges"));
  EXPECT_THAT(error_of({{{4, 4}}}), HasSubstr("row 0: expected non-empty key ranges"));
  EXPECT_THAT(error_of({{{-1, 4}}}), HasSubstr("row 0"));
  EXPECT_THAT(error_of({{{0, kMaxTokens + 1}}}), HasSubstr("row 0"));
}

}  // namespace
}  // namespace contextile
