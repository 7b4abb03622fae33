#include "strategy/schedule/groups.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "contextile/mask.h"
#include "support/batches.h"

namespace contextile {
namespace {

// Returns the stages at which every device computes.
std::map<std::int32_t, std::set<std::int32_t>> stages_of(const ArrangedDirection& direction) {
  std::map<std::int32_t, std::set<std::int32_t>> stages;
  for (const PlacedTile& tile : direction.tiles) stages[tile.device.value].insert(tile.stage);
  return stages;
}

TEST(GroupItems, AreRunsOfRanksWithTheSameSamples) {
  const RankSamples samples = {{0}, {0}, {}, {3, 1}, {2}, {2}};
  EXPECT_EQ(group_items(samples, SampleOrder::kOneByOne),
            (ScheduleRound{{0, 2, {0}}, {3, 1, {3}}, {3, 1, {1}}, {4, 2, {2}}}));
  EXPECT_EQ(group_items(samples, SampleOrder::kPacked),
            (ScheduleRound{{0, 2, {0}}, {3, 1, {3, 1}}, {4, 2, {2}}}));
}

TEST(ArrangeGroups, RunsARanksItemsOneAfterAnother) {
  const Workload workload = batch_of({400, 80, 90, 200});
  // Ranks 0 and 1 share sequence 0, then rank 1 alone has 1 and 2, then all three share 3.
  const std::vector<ScheduleRound> rounds = {{{0, 2, {0}}, {1, 1, {1}}, {1, 1, {2}}, {0, 3, {3}}}};
  const Arrangement arrangement = arrange_groups(workload, rounds, {});
  ASSERT_EQ(arrangement.rounds.size(), 1U);
  const ArrangedMask& programs = arrangement.rounds[0].programs[0];
  const auto forward = stages_of(*programs.forward);
  EXPECT_EQ(forward.at(0), (std::set<std::int32_t>{0, 1, 4, 5, 6}));
  EXPECT_EQ(forward.at(1), (std::set<std::int32_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(forward.at(2), (std::set<std::int32_t>{4, 5, 6}));
  // In backward a ring fetches first: 1 + 2 stages, two local ones, 1 + 3.
  const auto backward = stages_of(*programs.backward);
  EXPECT_EQ(backward.at(0), (std::set<std::int32_t>{1, 2, 6, 7, 8}));
  EXPECT_EQ(backward.at(1), (std::set<std::int32_t>{1, 2, 3, 4, 6, 7, 8}));
  EXPECT_EQ(backward.at(2), (std::set<std::int32_t>{6, 7, 8}));
}

TEST(ArrangeGroups, MovesNothingForSingleRanksAndARingForOthers) {
  const Workload workload = batch_of({300, 50, 60});
  const std::vector<ScheduleRound> rounds = {{{0, 1, {1, 2}}, {1, 3, {0}}}};
  const Arrangement arrangement = arrange_groups(workload, rounds, {});
  std::map<std::int32_t, int> sent;
  for (const Transfer& t : arrangement.rounds[0].programs[0].forward->transfers) {
    EXPECT_EQ(t.kind, Kind::kKv);
    ++sent[t.src.value];
  }
  EXPECT_EQ(sent, (std::map<std::int32_t, int>{{1, 2}, {2, 2}, {3, 2}}));
}

TEST(ArrangeGroups, GivesEveryRoundTheMaskOfItsTokens) {
  const Workload workload = batch_of({30, 40, 50});
  const std::vector<ScheduleRound> rounds = {{{0, 1, {2}}, {1, 1, {0}}}, {{0, 2, {1}}}};
  const Arrangement arrangement =
      arrange_groups(workload, rounds, {.block_size = 8, .backward = false});
  ASSERT_EQ(arrangement.rounds.size(), 2U);
  EXPECT_EQ(arrangement.rounds[0].blocks.total_tokens(), 80);
  EXPECT_EQ(arrangement.rounds[1].blocks.total_tokens(), 40);
  EXPECT_EQ(arrangement.rounds[0].masks[0].num_pairs(), 30 * 31 / 2 + 50 * 51 / 2);
  EXPECT_EQ(arrangement.rounds[1].masks[0].num_pairs(), 40 * 41 / 2);
  for (const ArrangedRound& round : arrangement.rounds) {
    EXPECT_FALSE(round.programs[0].backward);
    for (std::int32_t b = 0; b < round.blocks.num_blocks(); ++b) {
      EXPECT_LE(round.blocks.num_tokens(BlockId{b}), 8);
    }
  }
}

TEST(CrossesSequences, NamesTheMaskThatDoes) {
  Workload workload = batch_of({10, 20});
  EXPECT_FALSE(crosses_sequences(workload));
  // One band covers both sequences and stays inside each: every token attends itself.
  workload.masks.push_back({"own", 1, {{{{0, 30}, {0, 30}, 0, 0}}}});
  EXPECT_FALSE(crosses_sequences(workload));
  workload.masks.push_back({"before", 1, {{{{0, 30}, {0, 30}, -1, 0}}}});
  const auto reason = crosses_sequences(workload);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("mask 'before'"), std::string::npos) << *reason;
}

}  // namespace
}  // namespace contextile
