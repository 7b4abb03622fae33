// Tests of settings that all ranks of a group must share.
#include "transport/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace contextile {
namespace {

using ::testing::Each;
using ::testing::StartsWith;

using Settings = std::vector<Setting>;

// Returns the error that each of four ranks finds in its settings. A rank gives up at once if it
// finds one.
std::vector<std::string> said_by_ranks(const std::function<Settings(Rank)>& settings_of,
                                       const InprocOptions& options = {}) {
  std::vector<std::string> said(4);
  run_inproc(
      4,
      [&](Transport& transport) {
        try {
          check_same_settings(transport, "test", settings_of(transport.rank()));
        } catch (const std::exception& error) {
          said[transport.rank().index()] = error.what();
          transport.abort(error.what());
        }
      },
      options);
  return said;
}

TEST(Agreement, SaysNothingOfTheSameSettings) {
  EXPECT_THAT(said_by_ranks([](Rank) {
                return Settings{{"kernel", ""}, {"repeats", "3"}};
              }),
              Each(""));
  EXPECT_THAT(said_by_ranks([](Rank) { return Settings{}; }), Each(""));
}

TEST(Agreement, NamesTheFirstRankThatDiffersInTheSameWordsOnAllRanks) {
  const auto settings_of = [](Rank rank) {
    return Settings{{"kernel", "simd"}, {"repeats", rank.value < 2 ? "3" : "17"}};
  };
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_THAT(said_by_ranks(settings_of, {.max_delay_us = 2000, .delay_seed = seed}),
                Each("test: expected the same repeats on all ranks, found 3 on rank 0 and 17 on "
                     "rank 2"));
  }
}

TEST(Agreement, NamesSettingsThatARankLacksAndWhatTheyMayHold) {
  EXPECT_THAT(said_by_ranks([](Rank rank) {
                return rank == Rank{1} ? Settings{} : Settings{{"new", "1"}};
              }),
              Each("test: expected the same new on all ranks, found 1 on rank 0 and none on rank "
                   "1"));
  EXPECT_THAT(said_by_ranks([](Rank rank) {
                return rank == Rank{0} ? Settings{} : Settings{{"new", "\x1b[2J"}};
              }),
              Each("test: expected the same new on all ranks, found none on rank 0 and \\x1b[2J on "
                   "rank 1"));
}

TEST(Agreement, RefusesSettingsWithoutEnd) {
  EXPECT_THAT(said_by_ranks([](Rank rank) {
                return Settings{{"long", std::string(rank == Rank{3} ? 70'000 : 1, 'x')}};
              }),
              Each(StartsWith("rank ")));
}

TEST(Agreement, ARankThatLeftKeepsNobodyFromLooking) {
  run_inproc(3, [](Transport& transport) {
    if (transport.rank() == Rank{1}) return;
    EXPECT_NO_THROW(let_all_look(transport));
  });
}

}  // namespace
}  // namespace contextile
