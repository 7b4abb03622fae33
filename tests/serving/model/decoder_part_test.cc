#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "contextile/serving/decoder_model.h"

namespace contextile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

DecoderPart part(std::int32_t rank, std::int32_t ranks, std::int32_t context_parallel,
                 std::int32_t kv_ranks = 0) {
  return {Rank(rank), ranks, true, context_parallel, kv_ranks};
}

TEST(DecoderPart, RanksOfOneTensorPlaceShareTokens) {
  // 2 tensor-parallel by 4 context-parallel ranks.
  EXPECT_THAT(part(5, 8, 4).tensor_group(), ElementsAre(Rank(4), Rank(5)));
  EXPECT_THAT(part(5, 8, 4).token_group(), ElementsAre(Rank(1), Rank(3), Rank(5), Rank(7)));
  EXPECT_THAT(part(4, 8, 4).token_group(), ElementsAre(Rank(0), Rank(2), Rank(4), Rank(6)));
  EXPECT_EQ(part(5, 8, 4).head_groups(), 2);
  // All weights of the tensor place; of these a fourth while tokens are decoded.
  EXPECT_EQ(part(5, 8, 4).held(64), (Range{32, 64}));
  EXPECT_EQ(part(5, 8, 4).own(64), (Range{48, 56}));
  EXPECT_EQ(part(5, 8, 4).kv_heads(4), (Range{2, 4}));
}

TEST(DecoderPart, NeighboursShareTokensWithoutContextParallelism) {
  EXPECT_THAT(part(5, 8, 1, 2).token_group(), ElementsAre(Rank(4), Rank(5)));
  EXPECT_EQ(part(5, 8, 1, 2).head_groups(), 4);
  EXPECT_EQ(part(5, 8, 1, 2).group(64), (Range{32, 48}));
  EXPECT_EQ(part(5, 8, 1, 2).own(64), (Range{40, 48}));
  EXPECT_EQ(part(5, 8, 1, 2).held(64), (Range{40, 48}));
  EXPECT_EQ(part(5, 8, 1, 2).kv_heads(2), (Range{1, 2}));  // a copy: 4 groups have 2 heads
  EXPECT_EQ(part(5, 8, 1).token_group().size(), 8);
  EXPECT_EQ(part(5, 8, 1).kv_heads(3), (Range{0, 3}));
}

// All ranks together have everything once, whatever the sizes.
TEST(DecoderPart, OwnPartsAreAllInOrderOfThePlaces) {
  for (const std::int32_t context_parallel : {1, 2, 3, 6}) {
    for (const std::int64_t count : {6, 13, 50, 96}) {
      std::vector<std::int32_t> seen(static_cast<std::size_t>(count));
      for (std::int32_t r = 0; r < 6; ++r) {
        const DecoderPart its = part(r, 6, context_parallel);
        for (std::int64_t i = its.own(count).begin; i < its.own(count).end; ++i) {
          ++seen[static_cast<std::size_t>(i)];
          EXPECT_TRUE(its.held(count).contains(i));
        }
      }
      EXPECT_EQ(seen, std::vector<std::int32_t>(static_cast<std::size_t>(count), 1));
    }
  }
}

std::string error_of(const DecoderConfig& config, const DecoderPart& its) {
  try {
    check_decoder_part(config, its);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(DecoderPart, SaysWhatDoesNotDivide) {
  DecoderConfig config;
  config.q_heads = 12;
  config.kv_heads = 3;
  EXPECT_EQ(error_of(config, part(0, 6, 2)), "");
  EXPECT_EQ(error_of(config, part(0, 5, 1)), "");  // one group of heads
  EXPECT_THAT(error_of(config, part(0, 6, 4)),
              HasSubstr("context-parallel ranks that divide all 6, found 4"));
  EXPECT_THAT(error_of(config, part(0, 6, 1, 4)),
              HasSubstr("ranks that share tokens to divide all 6, found 4"));
  EXPECT_THAT(error_of(config, part(0, 6, 2, 3)),
              HasSubstr("the 2 context-parallel ranks to share tokens, found 3"));
  EXPECT_THAT(error_of(config, part(0, 8, 1, 1)),
              HasSubstr("query heads that the 8 groups of ranks divide, found 12"));
  EXPECT_THAT(error_of(config, part(0, 8, 1, 4)), HasSubstr("KV heads that the 2 groups"));
}

}  // namespace
}  // namespace contextile
