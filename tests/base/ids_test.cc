#include <gtest/gtest.h>

#include <type_traits>
#include <unordered_set>
#include <vector>

#include "base/check.h"
#include "contextile/base.h"

namespace contextile {
namespace {

TEST(Id, IsInvalidUntilItIsGiven) {
  EXPECT_FALSE(Rank{}.valid());
  EXPECT_EQ(Rank{}, kInvalidRank);
  EXPECT_TRUE(Rank{0}.valid());
  EXPECT_EQ(BlockId{7}.index(), 7U);
}

TEST(Id, OfOneKindIsNotAnother) {
  EXPECT_FALSE((std::is_convertible_v<Rank, BlockId>));
  EXPECT_FALSE((std::is_convertible_v<int, Rank>));
  EXPECT_FALSE((std::is_convertible_v<Rank, int>));
  EXPECT_FALSE((std::is_constructible_v<Rank, BlockId>));
}

TEST(Id, OrdersAndHashesByValue) {
  EXPECT_LT(BlockId{1}, BlockId{2});
  const std::unordered_set<BlockId> ids = {BlockId{1}, BlockId{2}, BlockId{1}};
  EXPECT_EQ(ids.size(), 2U);
}

TEST(Range, IsHalfOpen) {
  const Range range{3, 6};
  EXPECT_EQ(range.size(), 3);
  EXPECT_FALSE(range.empty());
  EXPECT_FALSE(range.contains(2));
  EXPECT_TRUE(range.contains(3));
  EXPECT_TRUE(range.contains(5));
  EXPECT_FALSE(range.contains(6));
}

TEST(Range, TurnedAroundIsEmpty) {
  const Range range{6, 3};
  EXPECT_TRUE(range.empty());
  EXPECT_EQ(range.size(), 0);
  EXPECT_FALSE(range.contains(4));
}

TEST(Intersect, KeepsWhatBothHold) {
  EXPECT_EQ(intersect({0, 5}, {3, 9}), (Range{3, 5}));
  EXPECT_EQ(intersect({3, 9}, {0, 5}), (Range{3, 5}));
  EXPECT_EQ(intersect({0, 9}, {3, 5}), (Range{3, 5}));
  EXPECT_TRUE(intersect({0, 3}, {3, 5}).empty());
  EXPECT_TRUE(intersect({0, 1}, {3, 5}).empty());
}

TEST(CheckedCast, ThrowsInsteadOfWrapping) {
  EXPECT_EQ(checked_cast<std::int32_t>(std::int64_t{2147483647}, "blocks"), 2147483647);
  EXPECT_THROW((void)checked_cast<std::int32_t>(std::int64_t{2147483648}, "blocks"),
               InvalidArgument);
  EXPECT_THROW((void)checked_cast<std::uint32_t>(-1, "blocks"), InvalidArgument);
  try {
    (void)checked_cast<std::int8_t>(300, "layers");
    FAIL() << "expected a throw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "layers: expected at most 127, found 300");
  }
}

TEST(Check, ThrowsItsMessageOnlyWhenItFails) {
  EXPECT_NO_THROW(CONTEXTILE_CHECK(1 < 2, "never {}", 0));
  try {
    CONTEXTILE_CHECK(2 < 1, "expected {}, found {}", 1, 2);
    FAIL() << "expected a throw";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "expected 1, found 2");
  }
}

template <typename V, typename I>
concept IndexedBy = requires(V vector, I id) {
  vector[id];
};

TEST(IdVector, IsIndexedByItsIds) {
  IdVector<Rank, int> values(IdRange<Rank>(3), 7);
  EXPECT_EQ(values.push_back(9), Rank{3});
  values[Rank{1}] = 8;
  std::vector<int> read;
  for (const Rank rank : values.ids()) read.push_back(values[rank]);
  EXPECT_EQ(read, (std::vector<int>{7, 8, 7, 9}));
  EXPECT_EQ(values, (IdVector<Rank, int>{7, 8, 7, 9}));
  static_assert(IndexedBy<IdVector<Rank, int>, Rank>);
  static_assert(!IndexedBy<IdVector<Rank, int>, BlockId>);
}

TEST(IdVector, OfAnEmptyRangeHasNoIds) {
  const IdVector<Rank, bool> none;
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(none.ids().begin() == none.ids().end());
}

}  // namespace
}  // namespace contextile
