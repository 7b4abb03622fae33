// The remaining ranks agree on one group, whichever ranks are lost and whenever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/store.h"

namespace contextile {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The group that each rank agrees on, which comes after its delay; its error if there is one.
struct Told {
  std::vector<Rank> members;
  Rank rank;
  std::string error;
};
std::vector<Told> gather(const std::string& run, std::int32_t num_ranks,
                         const std::vector<std::pair<std::int32_t, milliseconds>>& coming,
                         const MembershipOptions& options) {
  const std::unique_ptr<Store> store = open_store("memory:");
  std::vector<Told> told(coming.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < coming.size(); ++i) {
    threads.emplace_back([&, i] {
      std::this_thread::sleep_for(coming[i].second);
      try {
        Membership membership =
            agree_on_members(*store, run, 1, Rank{coming[i].first}, num_ranks, options);
        told[i] = {std::move(membership.members), membership.rank, ""};
      } catch (const TransportError& error) {
        told[i].error = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return told;
}

TEST(Membership, IsWhoCameAndNumbersThemAgain) {
  const std::vector<Told> told =
      gather("three", 5, {{4, {}}, {0, {}}, {3, {}}}, {.settle = milliseconds(300)});
  for (const Told& one : told) {
    EXPECT_THAT(one.members, ElementsAre(Rank{0}, Rank{3}, Rank{4})) << one.error;
  }
  EXPECT_EQ(told[0].rank, Rank{2});
  EXPECT_EQ(told[1].rank, Rank{0});
  EXPECT_EQ(told[2].rank, Rank{1});
}

TEST(Membership, IsDecidedAtOnceWhenNobodyIsMissing) {
  const std::vector<Told> told =
      gather("all", 2, {{0, {}}, {1, milliseconds(20)}}, {.settle = std::chrono::hours(1)});
  for (const Told& one : told) EXPECT_THAT(one.members, ElementsAre(Rank{0}, Rank{1})) << one.error;
}

TEST(Membership, LeavesOutWhoComesTooLateAndTellsThem) {
  const std::vector<Told> told =
      gather("late", 3, {{0, {}}, {2, milliseconds(1500)}}, {.settle = milliseconds(100)});
  EXPECT_THAT(told[0].members, ElementsAre(Rank{0}));
  EXPECT_THAT(told[1].error, HasSubstr("rank 2, going on: the others went on without this rank"));
}

// Whatever the timing, there is one group, and all its ranks agree on it.
TEST(Membership, IsOneForAllWhateverTheTiming) {
  Rng rng(::testing::GTEST_FLAG(random_seed) + 5);
  for (int turn = 0; turn < 10; ++turn) {
    std::vector<std::pair<std::int32_t, milliseconds>> coming;
    for (std::int32_t r = 0; r < 6; ++r) {
      if (rng.next() % 4 != 0) coming.emplace_back(r, milliseconds(rng.next() % 60));
    }
    if (coming.empty()) continue;
    const std::vector<Told> told =
        gather("random" + std::to_string(turn), 6, coming, {.settle = milliseconds(20)});
    std::optional<std::vector<Rank>> group;
    for (std::size_t i = 0; i < told.size(); ++i) {
      if (!told[i].error.empty()) {
        EXPECT_THAT(told[i].error, HasSubstr("went on without"));
        continue;
      }
      EXPECT_EQ(told[i].members.at(told[i].rank.index()).value, coming[i].first);
      EXPECT_EQ(group.value_or(told[i].members), told[i].members);
      group = told[i].members;
    }
    EXPECT_TRUE(group);
  }
}

TEST(Membership, RefusesWhatNoDecisionIs) {
  const std::unique_ptr<Store> store = open_store("memory:");
  for (const std::string text : {"", "0", "0 0 ", "2 1 ", "7 ", "x ", "-1 "}) {
    store->replace("odd/group/1/members",
                   {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()},
                   std::chrono::seconds(60));
    EXPECT_THROW(static_cast<void>(agree_on_members(*store, "odd", 1, Rank{0}, 3)), TransportError)
        << text;
  }
  EXPECT_THROW(static_cast<void>(agree_on_members(*store, "odd", 1, Rank{3}, 3)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(
                   agree_on_members(*store, "odd", 1, Rank{0}, 3, {.settle = milliseconds(0)})),
               InvalidArgument);
}

}  // namespace
}  // namespace contextile
