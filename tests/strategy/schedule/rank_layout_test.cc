#include "strategy/schedule/rank_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace contextile {
namespace {

constexpr TokenLayout kLayouts[] = {TokenLayout::kZigzag, TokenLayout::kContiguous,
                                    TokenLayout::kPerDocument, TokenLayout::kPerSequence};

std::int64_t tokens_of(const std::vector<Range>& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                         [](std::int64_t sum, const Range& range) { return sum + range.size(); });
}

std::vector<Range> random_sequences(std::mt19937_64& random) {
  std::vector<std::int64_t> lengths(1 + random() % 12);
  for (auto& length : lengths) length = 1 + static_cast<std::int64_t>(random() % 90);
  return sequences_from_lengths(lengths);
}

TEST(RankLayout, EveryTokenGoesToExactlyOneRank) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto sequences = random_sequences(random);
    const auto num_ranks = static_cast<std::int32_t>(1 + random() % 9);
    for (const TokenLayout layout : kLayouts) {
      std::vector<Range> all;
      for (const auto& ranges : rank_ranges(layout, sequences, num_ranks)) {
        all.insert(all.end(), ranges.begin(), ranges.end());
      }
      std::sort(all.begin(), all.end());
      std::int64_t next = 0;
      for (const Range& range : all) {
        EXPECT_EQ(range.begin, next);
        next = range.end;
      }
      EXPECT_EQ(next, sequences.back().end);
    }
  }
}

TEST(RankLayout, ZigzagGivesChunksRAndItsMirror) {
  const std::vector<Range> sequences = {{0, 16}, {16, 24}};
  const auto ranks = rank_ranges(TokenLayout::kZigzag, sequences, 2);
  // The chunks 12-16 and 16-18 are adjacent.
  EXPECT_EQ(ranks[0], (std::vector<Range>{{0, 4}, {12, 18}, {22, 24}}));
  EXPECT_EQ(ranks[1], (std::vector<Range>{{4, 12}, {18, 22}}));
}

TEST(RankLayout, ZigzagClipsThePaddedChunksOfOddSequences) {
  const std::vector<Range> sequences = {{0, 10}};  // chunks of 3: 0-3, 3-6, 6-9, 9-10
  const auto ranks = rank_ranges(TokenLayout::kZigzag, sequences, 2);
  EXPECT_EQ(ranks[0], (std::vector<Range>{{0, 3}, {9, 10}}));
  EXPECT_EQ(ranks[1], (std::vector<Range>{{3, 9}}));
}

TEST(RankLayout, PerDocumentDealsRemaindersOnFromDocumentToDocument) {
  // With 2 ranks there are 4 parts. 6 = 1+1+1+1 and two extras to parts 0, 1; 7 = 1+1+1+1 and three
  // to parts 2, 3, 0.
  const std::vector<Range> sequences = {{0, 6}, {6, 13}};
  const auto ranks = rank_ranges(TokenLayout::kPerDocument, sequences, 2);
  EXPECT_EQ(ranks[0], (std::vector<Range>{{0, 2}, {5, 8}, {11, 13}}));
  EXPECT_EQ(ranks[1], (std::vector<Range>{{2, 5}, {8, 11}}));
}

TEST(RankLayout, PerDocumentIsEvenWhenTheBatchDividesByAllChunks) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 30; ++trial) {
    SCOPED_TRACE(trial);
    auto sequences = random_sequences(random);
    const auto num_ranks = static_cast<std::int32_t>(1 + random() % 6);
    const std::int64_t chunks = 2 * num_ranks;
    const std::int64_t total = (sequences.back().end + chunks - 1) / chunks * chunks;
    sequences.back().end = total;
    for (const auto& ranges : rank_ranges(TokenLayout::kPerDocument, sequences, num_ranks)) {
      EXPECT_EQ(tokens_of(ranges), total / num_ranks);
    }
  }
}

TEST(RankLayout, PerSequenceCutsThePackedBatchAsOneSequence) {
  const std::vector<Range> sequences = {{0, 3}, {3, 8}};
  const auto ranks = rank_ranges(TokenLayout::kPerSequence, sequences, 2);
  EXPECT_EQ(ranks[0], (std::vector<Range>{{0, 2}, {6, 8}}));
  EXPECT_EQ(ranks[1], (std::vector<Range>{{2, 6}}));
}

TEST(AppendBlocks, NeverMixRolesOrHomesNorPassTheBlockSize) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Workload workload;
    workload.sequences = random_sequences(random);
    const std::int64_t tokens = workload.num_tokens();
    for (std::int64_t at = 0; at < tokens;) {
      const std::int64_t end =
          std::min<std::int64_t>(tokens, at + 1 + static_cast<std::int64_t>(random() % 40));
      if (random() % 3 == 0)
        workload.roles.push_back({{at, end}, random() % 2 ? Role::kKvOnly : Role::kQOnly});
      at = end;
    }
    if (random() % 2 == 0) {
      for (std::int64_t at = 0; at < tokens;) {
        const std::int64_t end =
            std::min<std::int64_t>(tokens, at + 1 + static_cast<std::int64_t>(random() % 50));
        workload.home.push_back({{at, end}, Rank{static_cast<std::int32_t>(random() % 4)}});
        at = end;
      }
    }
    const auto ranks = rank_ranges(TokenLayout::kZigzag, workload.sequences, 3);
    const std::int64_t block_size = 1 + static_cast<std::int64_t>(random() % 30);
    WorkBlocks work;
    for (std::int32_t r = 0; r < 3; ++r) {
      append_blocks(workload, ranks[static_cast<std::size_t>(r)], Rank{r}, block_size, work);
    }
    EXPECT_EQ(work.blocks.total_tokens(), tokens);
    static_cast<void>(sorted_ranges(work.blocks));  // throws if a token is in two blocks
    const auto role_at = [&](std::int64_t token) {
      for (const RoleRange& role : workload.roles) {
        if (role.tokens.contains(token)) return role.role;
      }
      return Role::kBoth;
    };
    const auto home_at = [&](std::int64_t token) {
      for (const HomeRange& home : workload.home) {
        if (home.tokens.contains(token)) return home.owner;
      }
      return kInvalidRank;
    };
    for (std::int32_t b = 0; b < work.blocks.num_blocks(); ++b) {
      const BlockId block{b};
      EXPECT_LE(work.blocks.num_tokens(block), block_size);
      const Rank home = home_at(work.blocks.ranges(block).front().begin);
      for (const Range& range : work.blocks.ranges(block)) {
        for (std::int64_t token = range.begin; token < range.end; ++token) {
          EXPECT_EQ(role_at(token), work.blocks.role(block));
          EXPECT_EQ(home_at(token), home);
          const auto& mine = ranks[work.workers[block.index()].index()];
          EXPECT_TRUE(std::any_of(mine.begin(), mine.end(),
                                  [&](const Range& r) { return r.contains(token); }));
        }
      }
    }
  }
}

TEST(AppendBlocks, FillsBlocksToTheBrim) {
  Workload workload;
  workload.sequences = {{0, 100}};
  WorkBlocks work;
  const std::vector<Range> ranges = {{0, 10}, {20, 35}};
  append_blocks(workload, ranges, Rank{0}, 8, work);
  ASSERT_EQ(work.blocks.num_blocks(), 4);
  EXPECT_EQ(work.blocks.num_tokens(BlockId{0}), 8);
  EXPECT_EQ(work.blocks.num_tokens(BlockId{1}), 8);  // 8-10 and 20-26
  EXPECT_EQ(work.blocks.ranges(BlockId{1}).size(), 2U);
  EXPECT_EQ(work.blocks.num_tokens(BlockId{3}), 1);
}

}  // namespace
}  // namespace contextile
