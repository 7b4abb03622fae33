#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/advanced/oracle.h"
#include "contextile/plan.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

TEST(TokenLayout, FollowsLocalBlocksAndTheirRangesInListedOrder) {
  Plan plan = example_plan();
  EXPECT_EQ(local_tokens(plan, Rank{0}), (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(local_tokens(plan, Rank{1}), (std::vector<std::int64_t>{4, 5, 6, 7}));
  std::swap(plan.rounds[0].devices[1].local_blocks[0], plan.rounds[0].devices[1].local_blocks[1]);
  EXPECT_EQ(local_tokens(plan, Rank{1}), (std::vector<std::int64_t>{5, 6, 7, 4}));
  EXPECT_THROW(static_cast<void>(local_tokens(plan, Rank{2})), InvalidArgument);
}

TEST(TokenLayout, LocalRangesAreTheLocalTokensInPieces) {
  const Plan plan = example_plan();
  EXPECT_EQ(local_ranges(plan, Rank{0}), (std::vector<Range>{{0, 4}}));
  EXPECT_EQ(local_ranges(plan, Rank{1}), (std::vector<Range>{{4, 5}, {5, 8}}));
  EXPECT_EQ(num_local_tokens(plan, Rank{0}), 4);
  EXPECT_EQ(num_local_tokens(plan, Rank{1}), 4);
  EXPECT_THROW(static_cast<void>(local_ranges(plan, Rank{2})), InvalidArgument);
}

TEST(TokenLayout, RolledTokensNeverCrossASequence) {
  const Plan plan = example_plan();  // sequences [0, 5) and [5, 8)
  EXPECT_EQ(rolled_tokens(plan, Rank{0}), (std::vector<std::int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(rolled_tokens(plan, Rank{1}), (std::vector<std::int64_t>{-1, 6, 7, -1}));
}

TEST(TokenLayout, PositionsComeFromThePlansSegments) {
  Plan plan = example_plan();
  plan.positions.clear();
  std::vector<TokenPosition> found = positions(plan, Rank{1});
  ASSERT_EQ(found.size(), 4);
  EXPECT_EQ(found[0].sequence, 0);
  EXPECT_EQ(found[0].position, 4);
  EXPECT_EQ(found[0].token, 4);
  EXPECT_EQ(found[3].sequence, 1);
  EXPECT_EQ(found[3].position, 2);
  // An answer that restarts at the question's end.
  plan.positions = {{{0, 5}, 0, 0}, {{5, 7}, 1, 0}, {{7, 8}, 1, 1}};
  found = positions(plan, Rank{1});
  EXPECT_EQ(found[2].position, 1);
  EXPECT_EQ(found[3].position, 1);
  // The token before it predicts nothing.
  EXPECT_EQ(rolled_tokens(plan, Rank{1}), (std::vector<std::int64_t>{-1, 6, -1, -1}));
}

TEST(TokenLayout, NextTokensHaveAllSuccessorsOfATokenWhereBranchesPart) {
  Plan plan = example_plan();  // sequences [0, 5) and [5, 8); rank 0 has [0, 4)
  EXPECT_EQ(next_tokens(plan, Rank{0}), (std::vector<NextToken>{{0, 1}, {1, 2}, {2, 3}, {3, 4}}));
  EXPECT_EQ(next_tokens(plan, Rank{1}), (std::vector<NextToken>{{1, 6}, {2, 7}}));
  plan.positions = {{{0, 3}, 0, 0}, {{3, 4}, 0, 2, 1}, {{4, 5}, 0, 2, 1},
                    {{5, 6}, 1, 0}, {{6, 7}, 1, 0},    {{7, 8}, 1, 1, 5}};
  EXPECT_EQ(next_tokens(plan, Rank{0}), (std::vector<NextToken>{{0, 1}, {1, 2}, {1, 3}, {1, 4}}));
  EXPECT_EQ(next_tokens(plan, Rank{1}), (std::vector<NextToken>{{1, 7}}));
  // Local rows are not in the order of tokens.
  std::swap(plan.rounds[0].devices[1].local_blocks[0], plan.rounds[0].devices[1].local_blocks[1]);
  EXPECT_EQ(next_tokens(plan, Rank{1}), (std::vector<NextToken>{{0, 7}}));
}

TEST(TokenLayout, RefusesWhatNobodyKnows) {
  Plan plan = example_plan();
  plan.positions = {{{0, 5}, 0, 0}, {{5, 8}, 1, 0, kPositionsUnknown}};
  EXPECT_THROW(check_knows_positions(plan, "positions"), InvalidArgument);
  for (const Rank rank : {Rank{0}, Rank{1}}) {  // on all ranks, also on one without such tokens
    EXPECT_THROW(static_cast<void>(rolled_tokens(plan, rank)), InvalidArgument);
    EXPECT_THROW(static_cast<void>(next_tokens(plan, rank)), InvalidArgument);
  }
  plan.positions.back().follows = kOrderUnknown;
  check_knows_positions(plan, "positions");
  EXPECT_THROW(static_cast<void>(rolled_tokens(plan, Rank{0})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(next_tokens(plan, Rank{0})), InvalidArgument);
}

TEST(TokenLayout, EveryTokenOfARandomPlanIsLocalExactlyOnce) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance);
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(named.name);
      std::vector<std::int64_t> all;
      std::vector<std::int64_t> predicted;
      for (std::int32_t r = 0; r < named.plan.num_devices(); ++r) {
        const std::vector<std::int64_t> mine = local_tokens(named.plan, Rank{r});
        const std::vector<TokenPosition> where = positions(named.plan, Rank{r});
        const std::vector<std::int64_t> next = rolled_tokens(named.plan, Rank{r});
        for (const NextToken& one : next_tokens(named.plan, Rank{r}))
          predicted.push_back(one.token);
        ASSERT_EQ(where.size(), mine.size());
        ASSERT_EQ(next.size(), mine.size());
        for (std::size_t n = 0; n < mine.size(); ++n) {
          EXPECT_EQ(where[n].token, mine[n]);
          const Range sequence = named.plan.sequences[static_cast<std::size_t>(where[n].sequence)];
          EXPECT_TRUE(sequence.contains(mine[n]));
          const bool ends = std::ranges::any_of(
              named.plan.positions,
              [&](const PositionSegment& segment) { return segment.tokens.end == mine[n] + 1; });
          EXPECT_EQ(next[n], ends ? -1 : mine[n] + 1);
        }
        all.insert(all.end(), mine.begin(), mine.end());
      }
      // Every token is predicted once, apart from those that follow none.
      for (const PositionSegment& segment : named.plan.positions) {
        if (segment.follows < 0) predicted.push_back(segment.tokens.begin);
      }
      std::sort(predicted.begin(), predicted.end());
      std::sort(all.begin(), all.end());
      EXPECT_EQ(predicted, all);
      ASSERT_EQ(std::ssize(all), batch.workload.num_tokens());
      for (std::size_t t = 0; t < all.size(); ++t) EXPECT_EQ(all[t], static_cast<std::int64_t>(t));
    }
  }
}

}  // namespace
}  // namespace contextile
