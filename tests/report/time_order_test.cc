// The comparison of predicted and measured times, by hand.
#include "report/time_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace contextile {
namespace {

using Times = std::vector<double>;

double correlation(const Times& a, const Times& b) { return rank_correlation(a, b).value(); }

TEST(RankCorrelation, LooksAtTheOrderAlone) {
  EXPECT_DOUBLE_EQ(correlation({1, 2, 3, 4}, {10, 100, 101, 1e9}), 1);
  EXPECT_DOUBLE_EQ(correlation({1, 2, 3, 4}, {4, 3, 2, 1}), -1);
  // 1 - 6·(0 + 1 + 1)/(3·8)
  EXPECT_DOUBLE_EQ(correlation({1, 2, 3}, {1, 3, 2}), 0.5);
}

TEST(RankCorrelation, TiesShareTheirMeanRank) {
  // Ranks 1.5, 1.5, 3 and 1, 2, 3: covariance 1.5, variances 1.5 and 2.
  EXPECT_DOUBLE_EQ(correlation({7, 7, 9}, {1, 2, 3}), 1.5 / std::sqrt(1.5 * 2));
}

TEST(RankCorrelation, NeedsTwoDifferentItems) {
  EXPECT_FALSE(rank_correlation(Times{}, Times{}));
  EXPECT_FALSE(rank_correlation(Times{1}, Times{1}));
  EXPECT_FALSE(rank_correlation(Times{1, 1}, Times{1, 2}));
}

TEST(PairOrder, CountsPairsThatAreApart) {
  // 100 and 104 are as good as equal; 120 is apart from both, predicted above one of them.
  const PairOrder order = pair_order(Times{5, 9, 7}, Times{100, 104, 120});
  EXPECT_EQ(order.differing, 2);
  EXPECT_EQ(order.alike, 1);
  EXPECT_EQ(pair_order(Times{}, Times{}).differing, 0);
}

}  // namespace
}  // namespace contextile
