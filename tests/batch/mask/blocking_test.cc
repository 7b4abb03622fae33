#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "contextile/mask.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;

TEST(Blocking, KeepsRangesRolesAndSizesOfEveryBlock) {
  Blocking blocking;
  EXPECT_EQ(blocking.num_blocks(), 0);
  EXPECT_EQ(blocking.total_tokens(), 0);
  const std::vector<Range> composite = {{30, 40}, {0, 5}};
  EXPECT_EQ(blocking.add(composite), BlockId{0});
  EXPECT_EQ(blocking.add({5, 8}, Role::kKvOnly), BlockId{1});
  EXPECT_EQ(blocking.num_blocks(), 2);
  EXPECT_EQ(blocking.num_ranges(), 3U);
  EXPECT_EQ(blocking.total_tokens(), 18);
  EXPECT_TRUE(std::ranges::equal(blocking.ranges(BlockId{0}), composite));
  EXPECT_EQ(blocking.num_tokens(BlockId{0}), 15);
  EXPECT_EQ(blocking.role(BlockId{0}), Role::kBoth);
  EXPECT_EQ(blocking.num_tokens(BlockId{1}), 3);
  EXPECT_EQ(blocking.role(BlockId{1}), Role::kKvOnly);
}

TEST(Blocking, RejectsBlocksWithoutTokensAndStaysAsItWas) {
  Blocking blocking;
  blocking.add({0, 4});
  const Blocking before = blocking;
  EXPECT_THROW(blocking.add(std::vector<Range>{}), InvalidArgument);
  EXPECT_THROW(blocking.add(std::vector<Range>{{4, 6}, {7, 7}}), InvalidArgument);
  EXPECT_THROW(blocking.add({-1, 2}), InvalidArgument);
  EXPECT_THROW(blocking.add({0, kMaxTokens + 1}), InvalidArgument);
  EXPECT_EQ(blocking, before);
}

TEST(SortedRanges, ListsEveryRangeByTokenWithItsRow) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const Blocking blocking = random_blocking(rng, random_between(rng, 0, 60), 8, 4, 0.8);
    const std::vector<RangeOfBlock> sorted = sorted_ranges(blocking);
    ASSERT_EQ(sorted.size(), blocking.num_ranges());
    std::int64_t end = 0;
    for (const RangeOfBlock& range : sorted) {
      ASSERT_GE(range.tokens.begin, end);
      end = range.tokens.end;
      const std::vector<std::int64_t> tokens = tokens_of_rows(blocking, range.block);
      for (std::int64_t t = range.tokens.begin; t < range.tokens.end; ++t) {
        ASSERT_EQ(tokens[static_cast<std::size_t>(range.first_row + t - range.tokens.begin)], t);
      }
    }
  }
}

TEST(SortedRanges, NamesTwoBlocksThatShareAToken) {
  Blocking blocking;
  blocking.add({20, 30});
  blocking.add({0, 10});
  blocking.add(std::vector<Range>{{12, 14}, {9, 11}});
  try {
    (void)sorted_ranges(blocking);
    FAIL() << "expected an overlap";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "blocks: expected disjoint token ranges, found token 9 in block 1 ([0, 10)) and "
                 "block 2 ([9, 11))");
  }
}

TEST(SortedRanges, FindsABlockThatHoldsATokenTwice) {
  Blocking blocking;
  blocking.add(std::vector<Range>{{0, 4}, {3, 6}});
  EXPECT_THROW((void)sorted_ranges(blocking), InvalidArgument);
}

}  // namespace
}  // namespace contextile
