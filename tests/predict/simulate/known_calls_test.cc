#include "predict/simulate/known_calls.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

TileOp tile_of(std::int32_t q_block, std::int32_t kv_block, std::int32_t group) {
  TileOp tile;
  tile.q_block = BlockId{q_block};
  tile.kv_block = BlockId{kv_block};
  tile.group = GroupId{group};
  return tile;
}

TEST(KnownCalls, AreFoundByBlocksInOrderWhateverTheirFirstGroup) {
  KnownCalls calls(8);
  const std::vector<TileOp> call = {tile_of(0, 1, 2), tile_of(0, 2, 3)};
  EXPECT_EQ(calls.find(call), nullptr);
  calls.keep(call, {1, 2});
  const CallTimes* found = calls.find({tile_of(0, 1, 0), tile_of(0, 2, 1)});
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(*found, (CallTimes{1, 2}));
  EXPECT_EQ(calls.find({tile_of(0, 2, 0), tile_of(0, 1, 1)}), nullptr);  // in another order
  EXPECT_EQ(calls.find({tile_of(0, 1, 0), tile_of(0, 2, 0)}), nullptr);  // one group
  EXPECT_EQ(calls.find({tile_of(0, 1, 0)}), nullptr);
  EXPECT_EQ(calls.find({}), nullptr);
}

// A table with room for one: every call meets all others' hash.
TEST(KnownCalls, NeverAnswerForAnotherCallWithTheSameHash) {
  Rng rng(1);
  KnownCalls calls(0);
  std::vector<std::vector<TileOp>> kept(300);
  for (std::vector<TileOp>& call : kept) {
    for (std::int64_t t = random_between(rng, 1, 3); t > 0; --t) {
      call.push_back(tile_of(static_cast<std::int32_t>(random_between(rng, 0, 3)),
                             static_cast<std::int32_t>(random_between(rng, 0, 3)), 0));
    }
    const double us = call.front().q_block.value + 10.0 * call.back().kv_block.value;
    if (const CallTimes* found = calls.find(call)) {
      EXPECT_EQ((*found)[0], us);
    }
    calls.keep(call, {us, us});
    ASSERT_NE(calls.find(call), nullptr);
  }
}

}  // namespace
}  // namespace contextile
