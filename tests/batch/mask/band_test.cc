#include <fmt/format.h>
#include <gtest/gtest.h>

#include "contextile/mask.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

DenseMask dense_of_band(const Band& band, std::int64_t size) {
  return dense_of_bands({&band, 1}, size, size);
}

TEST(Band, NumPairsCountsThePairs) {
  constexpr std::int64_t kSize = 14;
  Rng rng(1);
  for (int trial = 0; trial < 4000; ++trial) {
    const Band band = random_band(rng, kSize, kSize);
    SCOPED_TRACE(fmt::format("trial {}", trial));
    ASSERT_EQ(num_pairs(band), dense_of_band(band, kSize).num_pairs());
  }
}

TEST(Band, NumPairsIsExactForTheLargestBatch) {
  const Range all{0, kMaxTokens};
  EXPECT_EQ(num_pairs({all, all}), kMaxTokens * kMaxTokens);
  EXPECT_EQ(num_pairs({all, all, -kUnbounded, 0}), kMaxTokens / 2 * (kMaxTokens + 1));
  EXPECT_EQ(num_pairs({all, all, 0, kUnbounded}), kMaxTokens / 2 * (kMaxTokens + 1));
  EXPECT_EQ(num_pairs({all, all, 0, 0}), kMaxTokens);
  EXPECT_EQ(num_pairs({all, all, -1, 1}), 3 * kMaxTokens - 2);
}

TEST(Band, AnyIntegerIsABound) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const Range all{0, 5};
  EXPECT_EQ(num_pairs({all, all, kLeast, kMost}), 25);
  EXPECT_EQ(num_pairs({all, all, kLeast, 0}), 15);
  EXPECT_EQ(num_pairs({all, all, kMost, kMost}), 0);
  EXPECT_EQ(num_pairs({all, all, kLeast, kLeast}), 0);
  EXPECT_EQ(clip({all, all, kLeast, kMost}, all, all).q, all);
  EXPECT_TRUE(clip({all, all, kMost, kMost}, all, all).q.empty());
}

TEST(Band, ClipNeverLosesAPairAndAddsNone) {
  constexpr std::int64_t kSize = 12;
  Rng rng(2);
  for (int trial = 0; trial < 4000; ++trial) {
    SCOPED_TRACE(fmt::format("trial {}", trial));
    const Band band = random_band(rng, kSize, kSize);
    const Band window = random_band(rng, kSize, kSize);
    const Band clipped = clip(band, window.q, window.k);
    Band expected = band;
    expected.q = intersect(band.q, window.q);
    expected.k = intersect(band.k, window.k);
    ASSERT_EQ(dense_of_band(clipped, kSize), dense_of_band(expected, kSize));
    ASSERT_EQ(clipped.lo, band.lo);
    ASSERT_EQ(clipped.hi, band.hi);
  }
}

TEST(Band, EveryRowAndColumnOfAClippedBandHoldsAPair) {
  constexpr std::int64_t kSize = 12;
  Rng rng(3);
  for (int trial = 0; trial < 4000; ++trial) {
    SCOPED_TRACE(fmt::format("trial {}", trial));
    const Band band = random_band(rng, kSize, kSize);
    const Band tight = clip(band, {0, kSize}, {0, kSize});
    ASSERT_EQ(tight.q.empty(), tight.k.empty());
    for (std::int64_t q = tight.q.begin; q < tight.q.end; ++q) {
      ASSERT_GT(num_pairs(Band{{q, q + 1}, tight.k, tight.lo, tight.hi}), 0) << "row " << q;
    }
    for (std::int64_t k = tight.k.begin; k < tight.k.end; ++k) {
      ASSERT_GT(num_pairs(Band{tight.q, {k, k + 1}, tight.lo, tight.hi}), 0) << "column " << k;
    }
  }
}

TEST(FindOverlap, AgreesWithTheDenseMatrix) {
  constexpr std::int64_t kSize = 12;
  Rng rng(4);
  int overlapping = 0;
  for (int trial = 0; trial < 6000; ++trial) {
    SCOPED_TRACE(fmt::format("trial {}", trial));
    std::vector<Band> bands;
    const std::int64_t num_bands = random_between(rng, 0, 6);
    for (std::int64_t b = 0; b < num_bands; ++b) bands.push_back(random_band(rng, kSize, kSize));
    const DenseMask dense = dense_of_bands(bands, kSize, kSize);
    const bool expected = std::ranges::any_of(dense.counts, [](std::uint8_t n) { return n > 1; });
    const auto found = find_overlap(bands);
    ASSERT_EQ(found.has_value(), expected);
    if (!found) continue;
    ++overlapping;
    ASSERT_LT(found->first, found->second);
    const std::vector<Band> pair = {bands[found->first], bands[found->second]};
    const DenseMask both = dense_of_bands(pair, kSize, kSize);
    ASSERT_EQ(std::ranges::max(both.counts), 2) << found->first << " and " << found->second;
  }
  EXPECT_GT(overlapping, 1000);
  EXPECT_LT(overlapping, 5000);
}

TEST(FindOverlap, FindsTheOnePairThatTwoOfManyBandsShare) {
  constexpr std::int64_t kSize = 24;
  Rng rng(5);
  for (int trial = 0; trial < 500; ++trial) {
    SCOPED_TRACE(fmt::format("trial {}", trial));
    DenseMask dense(kSize, kSize);
    for (std::uint8_t& cell : dense.counts) cell = random_chance(rng, 0.5) ? 1 : 0;
    std::vector<Band> bands = mask_from_dense(dense.counts, kSize, kSize).bands;
    ASSERT_EQ(find_overlap(bands), std::nullopt);
    const std::int64_t q = random_between(rng, 0, kSize - 1);
    const std::int64_t k = random_between(rng, 0, kSize - 1);
    bands.push_back({{q, q + 1}, {k, k + 1}});
    const auto found = find_overlap(bands);
    ASSERT_EQ(found.has_value(), dense.at(q, k) == 1);
    if (found) {
      ASSERT_EQ(found->second, bands.size() - 1);
    }
  }
}

// Disjoint bands of which one grows a little: most overlaps are of two bands only.
TEST(FindOverlap, FindsWhatOneBandsGrowthTouches) {
  constexpr std::int64_t kSize = 20;
  int overlapping = 0;
  for (std::uint64_t seed = 0; seed < 8000; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    std::vector<Band> bands;
    for (int attempt = 0; attempt < 12; ++attempt) {
      bands.push_back(random_band(rng, kSize, kSize));
      const DenseMask dense = dense_of_bands(bands, kSize, kSize);
      if (std::ranges::max(dense.counts) > 1) bands.pop_back();
    }
    ASSERT_EQ(find_overlap(bands), std::nullopt);
    if (bands.empty()) continue;
    Band& band = bands[rng.next() % bands.size()];
    const std::int64_t by = random_between(rng, 1, 4);
    switch (rng.next() % 4) {
      case 0:
        band.lo -= by;
        break;
      case 1:
        band.hi += by;
        break;
      case 2:
        band.k.end = std::min(band.k.end + by, kSize);
        break;
      default:
        band.q.end = std::min(band.q.end + by, kSize);
        break;
    }
    const DenseMask dense = dense_of_bands(bands, kSize, kSize);
    const bool expected = std::ranges::max(dense.counts) > 1;
    overlapping += expected ? 1 : 0;
    ASSERT_EQ(find_overlap(bands).has_value(), expected);
  }
  EXPECT_GT(overlapping, 300);
}

TEST(FindOverlap, FindsTwoBandsThatMeetOnceTheOneBetweenThemHasEnded) {
  const std::vector<Band> bands = {
      {{0, 10}, {0, 10}, -kUnbounded, 0}, {{0, 3}, {3, 5}}, {{1, 10}, {6, 8}}};
  EXPECT_EQ(find_overlap(bands), (std::pair<std::size_t, std::size_t>{0, 2}));
}

// Bands that all share their rows, and bands whose rectangles all coincide: any pairwise test would
// take minutes here.
TEST(FindOverlap, TakesAHundredThousandStackedBands) {
  constexpr std::int64_t kBands = 100'000;
  const Range all{0, 2 * kBands};
  std::vector<Band> columns;
  std::vector<Band> diagonals;
  for (std::int64_t b = 0; b < kBands; ++b) {
    columns.push_back({all, {2 * b, 2 * b + 2}});
    diagonals.push_back({all, all, 2 * b - kBands, 2 * b + 1 - kBands});
  }
  EXPECT_EQ(find_overlap(columns), std::nullopt);
  EXPECT_EQ(find_overlap(diagonals), std::nullopt);
  diagonals[5].hi += 1;
  EXPECT_EQ(find_overlap(diagonals), (std::pair<std::size_t, std::size_t>{5, 6}));
}

TEST(CheckMask, NamesTheBandsAndAPairTheyShare) {
  const Mask mask{{{{0, 8}, {0, 4}}, {{4, 8}, {4, 8}}, {{6, 9}, {2, 4}, -3, 0}}};
  try {
    check_mask(mask, 9);
    FAIL() << "expected an overlap";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "mask: expected disjoint bands, found bands 0 and 2 both holding query 6, key 3");
  }
}

TEST(CheckMask, RejectsBandsOutsideTheBatch) {
  EXPECT_NO_THROW(check_mask({{{{0, 4}, {0, 4}}}}, 4));
  EXPECT_NO_THROW(check_mask({}, 4));
  EXPECT_THROW(check_mask({{{{0, 5}, {0, 4}}}}, 4), InvalidArgument);
  EXPECT_THROW(check_mask({{{{0, 4}, {0, 5}}}}, 4), InvalidArgument);
  EXPECT_THROW(check_mask({{{{-1, 4}, {0, 4}}}}, 4), InvalidArgument);
  EXPECT_THROW(check_mask({{{{3, 2}, {0, 4}}}}, 4), InvalidArgument);
}

TEST(Restrict, KeepsThePairsWithBothTokensInTheRanges) {
  constexpr std::int64_t kSize = 24;
  Rng rng(6);
  for (int trial = 0; trial < 1000; ++trial) {
    SCOPED_TRACE(fmt::format("trial {}", trial));
    const std::vector<Range> sequences = laid_end_to_end(std::vector<std::int64_t>{10, 1, 13});
    const MaskSpec spec = random_mask_spec(rng, 13);
    const Mask mask = build_mask(spec, sequences);
    std::vector<Range> tokens;
    for (std::int64_t begin = 0; begin < kSize;) {
      const std::int64_t end = std::min(kSize, begin + random_between(rng, 1, 6));
      if (random_chance(rng, 0.6)) tokens.push_back({begin, end});
      begin = end;
    }
    DenseMask expected = dense_of_rule(spec, sequences);
    const auto kept = [&](std::int64_t token) {
      return std::ranges::any_of(tokens, [&](Range range) { return range.contains(token); });
    };
    for (std::int64_t q = 0; q < kSize; ++q) {
      for (std::int64_t k = 0; k < kSize; ++k) {
        if (!kept(q) || !kept(k)) expected.at(q, k) = 0;
      }
    }
    const Mask restricted = restrict(mask, tokens);
    ASSERT_EQ(dense_of_bands(restricted.bands, kSize, kSize), expected);
    ASSERT_EQ(restricted.num_pairs(), expected.num_pairs());
  }
}

TEST(Restrict, LeavesAMaskAloneWhenTouchingRangesHoldAllTokens) {
  const std::vector<Range> sequences = {{0, 20}, {20, 50}};
  const Mask mask = build_mask({.rule = MaskSpec::Rule::kCausal}, sequences);
  const std::vector<Range> tokens = {{0, 7}, {7, 21}, {21, 50}};
  EXPECT_EQ(restrict(mask, tokens).bands, mask.bands);
}

TEST(Restrict, RejectsRangesOutOfOrder) {
  const Mask mask = build_mask({}, std::vector<Range>{{0, 20}});
  EXPECT_THROW((void)restrict(mask, std::vector<Range>{{5, 8}, {0, 5}}), InvalidArgument);
  EXPECT_THROW((void)restrict(mask, std::vector<Range>{{0, 5}, {4, 8}}), InvalidArgument);
}

}  // namespace
}  // namespace contextile
