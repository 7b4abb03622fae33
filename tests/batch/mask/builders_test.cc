#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "contextile/mask.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;
using Rule = MaskSpec::Rule;

class EveryRule : public ::testing::TestWithParam<Rule> {};

TEST_P(EveryRule, IsWhatItsRowsSayWithDisjointTightBands) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const std::int64_t max_length = random_chance(rng, 0.2) ? 3 : 40;
    const std::vector<Range> sequences = laid_end_to_end(random_lengths(rng, 4, max_length));
    const MaskSpec spec = random_mask_spec(rng, GetParam(), max_length);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, to_string(spec)));
    const Mask mask = build_mask(spec, sequences);
    const std::int64_t num_tokens = sequences.back().end;
    const DenseMask expected = dense_of_rule(spec, sequences);
    // Counts of 1 everywhere: the bands are disjoint, and nothing is missing.
    ASSERT_EQ(dense_of_bands(mask.bands, num_tokens, num_tokens), expected);
    ASSERT_EQ(mask.num_pairs(), expected.num_pairs());
    ASSERT_NO_THROW(check_mask(mask, num_tokens));
    for (const Band& band : mask.bands) ASSERT_EQ(band, clip(band, band.q, band.k));
  }
}

TEST_P(EveryRule, ComesOrderedByQueryOneSequenceAfterTheOther) {
  Rng rng(7);
  for (int trial = 0; trial < 100; ++trial) {
    const std::vector<Range> sequences = laid_end_to_end(random_lengths(rng, 5, 30));
    const MaskSpec spec = random_mask_spec(rng, GetParam(), 30);
    SCOPED_TRACE(to_string(spec));
    const std::vector<Band> bands = build_mask(spec, sequences).bands;
    ASSERT_TRUE(std::ranges::is_sorted(bands, {}, [](const Band& band) { return band.q.begin; }));
  }
}

TEST_P(EveryRule, OfTokensThatStandAloneIsWhatItIsInALongerSequence) {
  int standing = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed);
    const std::int64_t length = random_between(rng, 2, 40);
    const std::int64_t first = random_between(rng, 1, length - 1);
    const MaskSpec spec = random_mask_spec(rng, GetParam(), length);
    if (!stands_alone(spec, first)) continue;
    ++standing;
    SCOPED_TRACE(fmt::format("{} of {}: {}", first, length, to_string(spec)));
    DenseMask longer = dense_of_rule(spec, laid_end_to_end(std::vector<std::int64_t>{length}));
    longer.num_queries = first;
    longer.counts.resize(static_cast<std::size_t>(first * length));
    const Mask alone = build_mask(spec, laid_end_to_end(std::vector<std::int64_t>{first}));
    ASSERT_EQ(dense_of_bands(alone.bands, first, length), longer);
  }
  const bool never = GetParam() == Rule::kFull || GetParam() == Rule::kCausalBlockwise ||
                     GetParam() == Rule::kSharedQuestion;
  EXPECT_EQ(standing > 50, !never);
}

TEST_P(EveryRule, NeedsFewBandsForAMillionTokens) {
  const std::vector<Range> sequences = {{0, 1 << 20}};
  MaskSpec spec{.rule = GetParam(), .prefix = 1000, .chunk = 1 << 18};
  if (GetParam() == Rule::kCausalBlockwise) {
    spec.window = 2;
    spec.sink = 1;
  }
  EXPECT_LE(build_mask(spec, sequences).bands.size(), 5U);
}

TEST_P(EveryRule, GivesEveryTokenOnePosition) {
  Rng rng(8);
  for (int trial = 0; trial < 100; ++trial) {
    const std::vector<Range> sequences = laid_end_to_end(random_lengths(rng, 5, 30));
    const MaskSpec spec = random_mask_spec(rng, GetParam(), 30);
    SCOPED_TRACE(to_string(spec));
    std::int64_t end = 0;
    for (const PositionSegment& segment : build_positions(spec, sequences)) {
      ASSERT_EQ(segment.tokens.begin, end);
      ASSERT_FALSE(segment.tokens.empty());
      end = segment.tokens.end;
      const Range sequence = sequences[static_cast<std::size_t>(segment.sequence)];
      ASSERT_EQ(intersect(sequence, segment.tokens), segment.tokens);
      if (GetParam() != Rule::kSharedQuestion) {
        ASSERT_EQ(segment.tokens, sequence);
        ASSERT_EQ(segment.first_position, 0);
      }
    }
    ASSERT_EQ(end, sequences.back().end);
  }
}

INSTANTIATE_TEST_SUITE_P(Builders, EveryRule, ::testing::ValuesIn(kAllRules), [](const auto& info) {
  const std::string text = to_string(MaskSpec{.rule = info.param});
  return text.substr(0, text.find(':'));
});

std::vector<Range> row_of(const Mask& mask, std::int64_t q) {
  std::vector<Range> keys;
  for (const Band& band : mask.bands) {
    const Band row = clip(band, {q, q + 1}, band.k);
    if (!row.k.empty()) keys.push_back(row.k);
  }
  std::ranges::sort(keys);
  return keys;
}

TEST(Builders, CausalBlockwiseHasSinkWindowAndADenseLastBlock) {
  const MaskSpec spec{.rule = Rule::kCausalBlockwise, .window = 2, .sink = 1, .block = 4};
  const Mask mask = build_mask(spec, std::vector<Range>{{0, 22}});
  EXPECT_EQ(row_of(mask, 3), (std::vector<Range>{{0, 4}}));
  EXPECT_EQ(row_of(mask, 13), (std::vector<Range>{{0, 4}, {5, 14}}));
  EXPECT_EQ(row_of(mask, 19), (std::vector<Range>{{0, 4}, {11, 20}}));
  EXPECT_EQ(mask.bands.back(), (Band{{20, 22}, {0, 22}, -kUnbounded, 0}));
}

TEST(Builders, SharedQuestionGivesTheRemainderToTheLastAnswer) {
  const MaskSpec spec{.rule = Rule::kSharedQuestion};  // 0.2, 4 answers
  const Mask mask = build_mask(spec, std::vector<Range>{{100, 118}});
  // 3 tokens of question, answers of 3, 3, 3 and 6.
  EXPECT_EQ(row_of(mask, 102), (std::vector<Range>{{100, 103}}));
  EXPECT_EQ(row_of(mask, 107), (std::vector<Range>{{100, 103}, {106, 108}}));
  EXPECT_EQ(row_of(mask, 117), (std::vector<Range>{{100, 103}, {112, 118}}));
  const std::vector<PositionSegment> expected = {{{100, 106}, 0, 0},
                                                 {{106, 109}, 0, 3, 102},
                                                 {{109, 112}, 0, 3, 102},
                                                 {{112, 118}, 0, 3, 102}};
  EXPECT_EQ(build_positions(spec, std::vector<Range>{{100, 118}}), expected);
}

TEST(Builders, SharedQuestionTooShortForItsAnswersHasOne) {
  const MaskSpec spec{.rule = Rule::kSharedQuestion, .fraction = 0.4, .answers = 9};
  const std::vector<Range> sequences = {{0, 10}};
  EXPECT_EQ(row_of(build_mask(spec, sequences), 9), (std::vector<Range>{{0, 4}, {4, 10}}));
  EXPECT_EQ(build_positions(spec, sequences).size(), 1U);
}

TEST(Builders, SharedQuestionTakesGivenLengths) {
  const MaskSpec spec{.rule = Rule::kSharedQuestion, .lengths = {4, 2, 0, 3}};
  const std::vector<Range> sequences = {{0, 9}, {9, 18}};
  const Mask mask = build_mask(spec, sequences);
  EXPECT_EQ(dense_of_bands(mask.bands, 18, 18), dense_of_rule(spec, sequences));
  EXPECT_EQ(row_of(mask, 17), (std::vector<Range>{{9, 13}, {15, 18}}));
  EXPECT_THROW((void)build_mask(spec, std::vector<Range>{{0, 10}}), InvalidArgument);
  EXPECT_THROW((void)build_positions(spec, std::vector<Range>{{0, 10}}), InvalidArgument);
}

TEST(Builders, HugeParametersAreNoLimit) {
  const std::vector<Range> sequences = {{0, 50}};
  const Mask causal = build_mask({.rule = Rule::kCausal}, sequences);
  const auto pairs = [&](const MaskSpec& spec) { return build_mask(spec, sequences).num_pairs(); };
  EXPECT_EQ(pairs({.rule = Rule::kSlidingWindow, .window = kMaxTokens}), causal.num_pairs());
  EXPECT_EQ(pairs({.rule = Rule::kLambda, .window = kMaxTokens, .sink = kMaxTokens}),
            causal.num_pairs());
  EXPECT_EQ(
      pairs({.rule = Rule::kCausalBlockwise, .window = kMaxTokens, .sink = kMaxTokens, .block = 7}),
      causal.num_pairs());
  EXPECT_EQ(pairs({.rule = Rule::kCausalBlockwise,
                   .window = kMaxTokens,
                   .sink = kMaxTokens,
                   .block = kMaxTokens}),
            causal.num_pairs());
  EXPECT_EQ(pairs({.rule = Rule::kPrefixLm, .prefix = kMaxTokens}), 2500);
  EXPECT_EQ(pairs({.rule = Rule::kChunked, .chunk = kMaxTokens}), causal.num_pairs());
}

TEST(Builders, RejectBadParameters) {
  const std::vector<Range> sequences = {{0, 50}};
  const auto build = [&](const MaskSpec& spec) { (void)build_mask(spec, sequences); };
  EXPECT_THROW(build({.rule = Rule::kSlidingWindow, .window = 0}), InvalidArgument);
  EXPECT_THROW(build({.rule = Rule::kLambda, .window = 0}), InvalidArgument);
  EXPECT_THROW(build({.rule = Rule::kLambda, .sink = -1}), InvalidArgument);
  EXPECT_THROW(build({.rule = Rule::kCausalBlockwise, .block = 0}), InvalidArgument);
  EXPECT_THROW(build({.rule = Rule::kCausalBlockwise, .window = 0}), InvalidArgument);
  EXPECT_THROW(build({.rule = Rule::kSharedQuestion, .fraction = 1.01}), InvalidArgument);
  EXPECT_THROW(build({.rule = Rule::kSharedQuestion, .fraction = std::nan("")}), InvalidArgument);
  EXPECT_THROW(build({.rule = Rule::kSharedQuestion, .answers = 0}), InvalidArgument);
  EXPECT_THROW(build({.rule = Rule::kPrefixLm, .prefix = -1}), InvalidArgument);
  EXPECT_THROW(build({.rule = Rule::kChunked, .chunk = 0}), InvalidArgument);
  EXPECT_THROW(build({.rule = static_cast<Rule>(99)}), InvalidArgument);
}

TEST(Builders, RejectBadSequences) {
  const MaskSpec causal;
  EXPECT_THROW((void)build_mask(causal, std::vector<Range>{{0, 0}}), InvalidArgument);
  EXPECT_THROW((void)build_mask(causal, std::vector<Range>{{0, 4}, {3, 6}}), InvalidArgument);
  EXPECT_THROW((void)build_mask(causal, std::vector<Range>{{-1, 4}}), InvalidArgument);
  EXPECT_THROW((void)build_mask(causal, std::vector<Range>{{0, kMaxTokens + 1}}), InvalidArgument);
  EXPECT_TRUE(build_mask(causal, {}).bands.empty());
}

TEST(BuildDocumentMask, GivesEverySequenceItsOwnRule) {
  Rng rng(9);
  for (int trial = 0; trial < 200; ++trial) {
    SCOPED_TRACE(fmt::format("trial {}", trial));
    const std::vector<Range> sequences = laid_end_to_end(random_lengths(rng, 6, 20));
    std::vector<MaskSpec> specs;
    DenseMask expected(sequences.back().end, sequences.back().end);
    for (const Range tokens : sequences) {
      specs.push_back(random_mask_spec(rng, 20));
      for (std::int64_t q = tokens.begin; q < tokens.end; ++q) {
        for (std::int64_t k = tokens.begin; k < tokens.end; ++k) {
          expected.at(q, k) =
              rule_attends(specs.back(), tokens.size(), q - tokens.begin, k - tokens.begin) ? 1 : 0;
        }
      }
    }
    const Mask mask = build_document_mask(specs, sequences);
    ASSERT_EQ(dense_of_bands(mask.bands, expected.num_queries, expected.num_keys), expected);
  }
  EXPECT_THROW((void)build_document_mask(std::vector<MaskSpec>(2), std::vector<Range>{{0, 4}}),
               InvalidArgument);
}

TEST(MaskFromSlices, AlignsEachTypeAtItsCorner) {
  Rng rng(10);
  for (int trial = 0; trial < 500; ++trial) {
    SCOPED_TRACE(fmt::format("trial {}", trial));
    const Band rectangle = random_band(rng, 16, 16);
    const auto type = static_cast<SliceType>(random_between(rng, 0, 3));
    const Slice slice{rectangle.q, rectangle.k, type};
    DenseMask expected(16, 16);
    for (std::int64_t q = slice.q.begin; q < slice.q.end; ++q) {
      for (std::int64_t k = slice.k.begin; k < slice.k.end; ++k) {
        const bool bottom_right = slice.k.end - k >= slice.q.end - q;
        const bool top_left = k - slice.k.begin >= q - slice.q.begin;
        const bool causal = type == SliceType::kCausal || type == SliceType::kBiCausal;
        const bool inverse = type == SliceType::kInverseCausal || type == SliceType::kBiCausal;
        expected.at(q, k) = (bottom_right || !causal) && (top_left || !inverse) ? 1 : 0;
      }
    }
    const Mask mask = mask_from_slices({&slice, 1});
    ASSERT_EQ(dense_of_bands(mask.bands, 16, 16), expected);
  }
}

TEST(MaskFromSlices, BuildsPackedCausalDocumentsWithASharedPrefix) {
  const std::vector<Slice> slices = {{{0, 4}, {0, 4}, SliceType::kCausal},
                                     {{4, 9}, {0, 2}, SliceType::kFull},
                                     {{4, 9}, {4, 9}, SliceType::kCausal}};
  const Mask mask = mask_from_slices(slices);
  EXPECT_EQ(mask.num_pairs(), 10 + 10 + 15);
  EXPECT_NO_THROW(check_mask(mask, 9));
}

TEST(MaskFromSlices, RejectsOverlapsAndBadRanges) {
  const auto build = [](std::vector<Slice> slices) { (void)mask_from_slices(slices); };
  try {
    build({{{0, 1}, {5, 5}}, {{0, 4}, {0, 4}}, {{3, 5}, {3, 5}}});
    FAIL() << "expected an overlap";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("slices 1 and 2"));
  }
  EXPECT_THROW(build({{{-1, 4}, {0, 4}}}), InvalidArgument);
  EXPECT_THROW(build({{{4, 1}, {0, 4}}}), InvalidArgument);
  EXPECT_THROW(build({{{0, 4}, {0, kMaxTokens + 1}}}), InvalidArgument);
}

}  // namespace
}  // namespace contextile
