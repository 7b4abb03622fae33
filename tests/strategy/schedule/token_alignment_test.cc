#include "strategy/schedule/token_alignment.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contextile/extend/strategies.h"
#include "contextile/extend/strategy.h"
#include "contextile/planner.h"
#include "support/batches.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using Tokens = std::vector<std::int64_t>;

Tokens aligned(const Tokens& owned, const PlanOptions& options,
               std::optional<std::int64_t> cap = {}) {
  const auto tokens = aligned_tokens(IdVector<Rank, std::int64_t>(owned), options, cap);
  return {tokens.begin(), tokens.end()};
}

PlanOptions multiples_of(std::int64_t tokens) {
  PlanOptions options;
  options.tokens_multiple = tokens;
  return options;
}

PlanOptions equal(std::int64_t multiple = 1) {
  PlanOptions options = multiples_of(multiple);
  options.equal_tokens = true;
  return options;
}

TEST(TokenAlignment, RoundsUpWhereMostIsMissing) {
  EXPECT_EQ(aligned({15, 17, 20, 12}, multiples_of(16)), (Tokens{16, 16, 16, 16}));
  EXPECT_EQ(aligned({31, 1, 0, 32}, multiples_of(16)), (Tokens{32, 0, 0, 32}));
  EXPECT_EQ(aligned({3, 3, 2}, multiples_of(8)), (Tokens{8, 0, 0}));  // ties to the first
  EXPECT_EQ(aligned({64, 0, 16, 48}, multiples_of(16)), (Tokens{64, 0, 16, 48}));
}

TEST(TokenAlignment, KeepsToACapAndTheLimit) {
  EXPECT_EQ(aligned({60, 4, 16, 48}, multiples_of(16), 33), (Tokens{48, 16, 16, 48}));
  EXPECT_EQ(aligned({60, 4, 16, 48}, multiples_of(16), 32), (Tokens{32, 32, 32, 32}));
  PlanOptions limited = multiples_of(16);
  limited.limits.tokens = 47;
  EXPECT_EQ(aligned({60, 4, 16, 48}, limited), (Tokens{32, 32, 32, 32}));
}

TEST(TokenAlignment, MakesTokensEqual) {
  EXPECT_EQ(aligned({60, 4, 16, 48}, equal(16)), (Tokens{32, 32, 32, 32}));
  EXPECT_EQ(aligned({7, 0, 2}, equal()), (Tokens{3, 3, 3}));
}

TEST(TokenAlignment, LeavesArrangementsThatKeepToIt) {
  const Workload workload = batch_of({256, 256});
  Cluster cluster;
  cluster.nodes = 1;
  cluster.devices_per_node = 4;
  const Arrangement before = find_strategy("zigzag").arrange(workload, cluster, {});
  Arrangement after = before;
  align_tokens(workload, cluster, equal(16), after);
  ASSERT_EQ(after.rounds.size(), 1U);
  EXPECT_EQ(after.rounds[0].blocks, before.rounds[0].blocks);
  EXPECT_EQ(after.rounds[0].owners, before.rounds[0].owners);
  EXPECT_EQ(after.rounds[0].programs[0].forward->transfers.size(),
            before.rounds[0].programs[0].forward->transfers.size());
}

TEST(TokenAlignment, NamesWhatNoPlanKeepsTo) {
  Workload workload = batch_of({1000, 203});
  Cluster cluster;
  cluster.nodes = 1;
  cluster.devices_per_node = 4;
  const auto refused = [&](const PlanOptions& options) {
    return message_of([&] { check_alignment(workload, cluster, options); });
  };
  EXPECT_EQ(refused({}), "no error");
  EXPECT_EQ(refused(multiples_of(16)),
            "tokens_multiple: expected a batch of a multiple of 16 tokens, found 1203; pad it by "
            "13");
  EXPECT_EQ(refused(multiples_of(0)), "tokens_multiple: expected 1 to 2147483648, found 0");
  EXPECT_EQ(refused(equal()),
            "equal_tokens: expected a batch of a multiple of 4 tokens (1 on each of 4 devices), "
            "found 1203; pad it by 1");
  workload = batch_of({1000, 216});
  EXPECT_EQ(refused(multiples_of(16)), "no error");
  PlanOptions limited = multiples_of(16);
  limited.limits.tokens = 303;
  EXPECT_EQ(refused(limited),
            "token limit: expected room for 1216 tokens on 4 devices in multiples of 16, found a "
            "limit of 303");
  workload.home = {{{0, 1216}, Rank{0}}};
  EXPECT_EQ(refused(multiples_of(16)),
            "tokens_multiple: expected a workload without a home layout, which says itself how "
            "many tokens a device owns");
}

}  // namespace
}  // namespace contextile
