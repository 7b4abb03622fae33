#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

#include "contextile/mask.h"
#include "support/mask_support.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;
using Rule = MaskSpec::Rule;

std::int64_t length_of(const MaskSpec& tree) {
  std::int64_t length = 0;
  for (const std::int64_t tokens : tree.lengths) length += tokens;
  return length;
}

std::int64_t depth_of(const MaskSpec& tree) {  // segments on the longest way
  std::vector<std::int64_t> depth;
  for (const std::int64_t parent : tree.parents) {
    depth.push_back(parent < 0 ? 1 : depth[static_cast<std::size_t>(parent)] + 1);
  }
  return *std::ranges::max_element(depth);
}

// Two sequences of one tree, the first one not at token 0.
std::vector<Range> twice(const MaskSpec& tree) {
  const std::int64_t length = length_of(tree);
  return {{7, 7 + length}, {7 + length, 7 + 2 * length}};
}

TEST(Tree, IsWhatItsRowsSayWithDisjointTightOrderedBands) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Rng rng(seed);
    const MaskSpec tree = random_tree(rng, 12, random_chance(rng, 0.3) ? 1 : 8);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, to_string(tree)));
    const std::vector<Range> sequences = twice(tree);
    const Mask mask = build_mask(tree, sequences);
    const DenseMask expected = dense_of_rule(tree, sequences);
    ASSERT_EQ(dense_of_bands(mask.bands, sequences[1].end, sequences[1].end), expected);
    ASSERT_NO_THROW(check_mask(mask, sequences[1].end));
    for (const Band& band : mask.bands) ASSERT_EQ(band, clip(band, band.q, band.k));
    ASSERT_TRUE(std::ranges::is_sorted(mask.bands));
    ASSERT_LE(std::ssize(mask.bands), 2 * std::ssize(tree.lengths) * depth_of(tree));
  }
}

TEST(Tree, NeedsOneBandPerSegmentIfStoredDepthFirst) {
  // A prompt, two beginnings of answers, two ends of each.
  const MaskSpec tree = parse_mask_spec("tree:[30,6,4,5,3,2,1],[-1,0,1,1,0,4,4]");
  const Mask mask = build_mask(tree, std::vector<Range>{{100, 151}});
  const std::vector<Band> expected = {
      {{100, 151}, {100, 130}, -kUnbounded, 0}, {{130, 145}, {130, 136}, -kUnbounded, 0},
      {{136, 140}, {136, 140}, -kUnbounded, 0}, {{140, 145}, {140, 145}, -kUnbounded, 0},
      {{145, 151}, {145, 148}, -kUnbounded, 0}, {{148, 150}, {148, 150}, -kUnbounded, 0},
      {{150, 151}, {150, 151}, -kUnbounded, 0}};
  EXPECT_EQ(mask.bands, expected);
}

TEST(Tree, NeedsOneBandMorePerAncestorWhereDescendantsLieApart) {
  // Two levels, breadth first: the last row but one is below segment 1 again.
  const MaskSpec tree = parse_mask_spec("tree:[4,3,2,1,1],[-1,0,0,1,2]");
  const Mask mask = build_mask(tree, std::vector<Range>{{0, 11}});
  const std::vector<Band> expected = {
      {{0, 11}, {0, 4}, -kUnbounded, 0},   {{4, 7}, {4, 7}, -kUnbounded, 0},
      {{7, 9}, {7, 9}, -kUnbounded, 0},    {{9, 10}, {4, 7}},
      {{9, 10}, {9, 10}, -kUnbounded, 0},  {{10, 11}, {7, 9}},
      {{10, 11}, {10, 11}, -kUnbounded, 0}};
  EXPECT_EQ(mask.bands, expected);
}

TEST(Tree, JoinsSegmentsWithoutBranches) {
  const Mask chain =
      build_mask(parse_mask_spec("tree:[4,3,2],[-1,0,1]"), std::vector<Range>{{0, 9}});
  EXPECT_EQ(chain.bands, build_mask({}, std::vector<Range>{{0, 9}}).bands);
  const Mask one = build_mask(parse_mask_spec("tree:[9],[-1]"), std::vector<Range>{{0, 9}});
  EXPECT_EQ(one.bands, chain.bands);
}

TEST(Tree, OfTwoLevelsIsASharedQuestion) {
  const std::vector<Range> sequences = {{0, 12}, {12, 24}};
  const MaskSpec tree = parse_mask_spec("tree:[5,3,2,2],[-1,0,0,0]");
  const MaskSpec question = parse_mask_spec("shared_question:[5,3,2,2]");
  EXPECT_EQ(build_mask(tree, sequences).bands, build_mask(question, sequences).bands);
  EXPECT_EQ(build_positions(tree, sequences), build_positions(question, sequences));
}

TEST(Tree, CostsWhatItsBandsCost) {
  // A leaf and a way on at every token: as deep as a tree of 200,001 tokens with branches can be.
  MaskSpec tree{.rule = Rule::kTree, .lengths = {1}, .parents = {-1}};
  for (std::int64_t above = 0; above < 200'000; above += 2) {
    tree.lengths.insert(tree.lengths.end(), {1, 1});
    tree.parents.insert(tree.parents.end(), {above, above});
  }
  const std::vector<Range> sequences = {{0, length_of(tree)}};
  EXPECT_LE(std::ssize(build_mask(tree, sequences).bands), std::ssize(tree.lengths));
  EXPECT_LE(std::ssize(build_positions(tree, sequences)), std::ssize(tree.lengths));
}

TEST(Tree, PositionsAreDepthsAndAlikeWithoutARule) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Rng rng(seed);
    const MaskSpec tree = random_tree(rng, 12, 6);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, to_string(tree)));
    const std::vector<Range> sequences = twice(tree);
    const Mask mask = build_mask(tree, sequences);
    const std::vector<PositionSegment> segments = build_positions(tree, sequences);
    std::int64_t next = sequences[0].begin;
    for (const auto& [tokens, sequence, first_position, follows] : segments) {
      ASSERT_EQ(tokens.begin, next);
      next = tokens.end;
      for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
        std::int64_t keys = 0;
        std::int64_t last = -1;  // before the token
        for (const Band& band : mask.bands) {
          const Band row = clip(band, {t, t + 1}, band.k);
          keys += row.k.size();
          if (!row.k.empty() && row.k.begin < t) last = std::max(last, std::min(row.k.end, t) - 1);
        }
        ASSERT_EQ(first_position + t - tokens.begin, keys - 1);
        ASSERT_EQ(t == tokens.begin ? follows : t - 1, last);
      }
    }
    ASSERT_EQ(next, sequences[1].end);
    const Mask* const masks[] = {&mask};
    ASSERT_EQ(infer_positions(masks, sequences), segments);
  }
}

TEST(Tree, FitsSequencesOfItsLengthOnly) {
  const MaskSpec tree = parse_mask_spec("tree:[5,3],[-1,0]");
  const auto message = [&](auto build) {
    return message_of([&] { static_cast<void>(build(tree, std::vector<Range>{{0, 8}, {8, 17}})); });
  };
  const char* expected =
      "mask tree: expected lengths that sum to the sequence's 9 tokens, found a sum of 8";
  EXPECT_EQ(
      message([](const auto& spec, const auto& sequences) { return build_mask(spec, sequences); }),
      expected);
  EXPECT_EQ(message([](const auto& spec, const auto& sequences) {
              return build_positions(spec, sequences);
            }),
            expected);
  EXPECT_FALSE(stands_alone(tree, 5));
  EXPECT_THROW((void)build_mask({.rule = Rule::kTree}, std::vector<Range>{{0, 8}}),
               InvalidArgument);
}

std::vector<std::int64_t> tokens_of(const TokenTree& tree, std::size_t branch) {
  std::vector<std::int64_t> tokens;
  for (const Range& range : tree.branches[branch]) {
    for (std::int64_t t = range.begin; t < range.end; ++t) {
      tokens.push_back(tree.tokens[static_cast<std::size_t>(t)]);
    }
  }
  return tokens;
}

TEST(TokenTree, StoresSharedBeginningsOnceInTheOrderOfTheLists) {
  const std::vector<std::vector<std::int64_t>> branches = {
      {1, 2, 3, 9, 9}, {1, 2, 7}, {1, 2, 3, 4}, {1, 2}, {1, 2, 7}};
  const TokenTree tree = build_token_tree(branches);
  EXPECT_EQ(tree.tokens, (std::vector<std::int64_t>{1, 2, 3, 9, 9, 4, 7}));
  EXPECT_EQ(to_string(tree.mask), "tree:[2,1,2,1,1],[-1,0,1,1,0]");
  EXPECT_EQ(tree.branches,
            (std::vector<std::vector<Range>>{
                {{0, 5}}, {{0, 2}, {6, 7}}, {{0, 3}, {5, 6}}, {{0, 2}}, {{0, 2}, {6, 7}}}));
}

TEST(TokenTree, GivesEveryBranchItsTokensAndTheKeysItHasAlone) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    std::vector<std::vector<std::int64_t>> branches;
    std::set<std::vector<std::int64_t>> prefixes;
    for (const std::int64_t length : random_lengths(rng, 9, 12)) {
      std::vector<std::int64_t>& branch = branches.emplace_back(1, 5);
      while (std::ssize(branch) < length) branch.push_back(random_between(rng, 0, 2));
      for (std::size_t end = 1; end <= branch.size(); ++end) {
        prefixes.emplace(branch.begin(), branch.begin() + static_cast<std::ptrdiff_t>(end));
      }
    }
    const TokenTree tree = build_token_tree(branches);
    const std::int64_t length = std::ssize(tree.tokens);
    ASSERT_EQ(length, std::ssize(prefixes));
    const std::vector<Range> sequences = {{0, length}};
    const Mask mask = build_mask(tree.mask, sequences);
    ASSERT_LE(std::ssize(mask.bands), std::ssize(tree.mask.lengths));
    const DenseMask dense = dense_of_bands(mask.bands, length, length);
    for (std::size_t b = 0; b < branches.size(); ++b) {
      ASSERT_EQ(tokens_of(tree, b), branches[b]);
      std::set<std::int64_t> seen;
      for (const Range& range : tree.branches[b]) {
        for (std::int64_t q = range.begin; q < range.end; ++q) {
          seen.insert(q);
          for (std::int64_t k = 0; k < length; ++k) ASSERT_EQ(dense.at(q, k), seen.count(k));
        }
      }
    }
  }
}

TEST(TokenTree, RefusesBranchesThatShareNothing) {
  const auto message = [](const std::vector<std::vector<std::int64_t>>& branches) {
    return message_of([&] { static_cast<void>(build_token_tree(branches)); });
  };
  EXPECT_EQ(message({}), "token tree: expected at least one branch, found none");
  EXPECT_EQ(message({{1}, {}}), "token tree: branch 1: expected at least one token, found none");
  EXPECT_THAT(message({{1, 2}, {2, 2}}),
              HasSubstr("branch 1: expected token 1 first, as in branch 0, found 2"));
}

}  // namespace
}  // namespace contextile
