#include "strategy/groups/bytescale.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/plan_build.h"
#include "contextile/plan.h"
#include "contextile/verify.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

TEST(Bytescale, GivesLongSequencesRanksAndPacksShortOnes) {
  // C = 100: sequence 1 takes three ranks, 0 two; bins {3, 4}, {2, 5}, {6} of the others.
  const std::vector<std::int64_t> lengths = {150, 250, 60, 70, 30, 40, 30};
  const auto waves = schedule_bytescale(lengths, {.num_ranks = 6, .cap_tokens = 100});
  // Wave 1: 1 on ranks 0 to 2, 0 on 3 and 4, the first full bin on 5. Then the ranks with the
  // fewest tokens: 3 has 75.
  EXPECT_EQ(waves, (std::vector<ScheduleRound>{
                       {{0, 3, {1}}, {3, 2, {0}}, {5, 1, {3, 4}}},
                       {{3, 1, {2, 5}}, {4, 1, {6}}},
                   }));
}

TEST(Bytescale, ChoosesByWorkWhenAskedTo) {
  // Two ranks of 100 tokens: after the first wave both have 100 tokens, but rank 1, which has two
  // shorter sequences, has less work.
  const std::vector<std::int64_t> lengths = {100, 50, 50, 25, 25, 25, 25, 90, 10};
  const WaveOptions by_tokens{.num_ranks = 2, .cap_tokens = 100};
  WaveOptions by_work = by_tokens;
  by_work.choice = RankChoice::kFlops;
  const auto tokens = schedule_bytescale(lengths, by_tokens);
  const auto work = schedule_bytescale(lengths, by_work);
  const std::vector<ScheduleRound> expected_tokens = {{{0, 1, {0}}, {1, 1, {7, 8}}},
                                                      {{0, 1, {1, 2}}, {1, 1, {3, 4, 5, 6}}}};
  const std::vector<ScheduleRound> expected_work = {{{0, 1, {0}}, {1, 1, {7, 8}}},
                                                    {{1, 1, {1, 2}}, {0, 1, {3, 4, 5, 6}}}};
  EXPECT_EQ(tokens, expected_tokens);
  EXPECT_EQ(work, expected_work);
}

TEST(Bytescale, PlacesEverySequenceOnceWithinItsCap) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const std::vector<std::int64_t> lengths = random_lengths(rng, 40, 2000);
    const auto ranks = static_cast<std::int32_t>(random_between(rng, 1, 13));
    std::int64_t total = 0;
    for (const std::int64_t length : lengths) total += length;
    const std::int64_t cap = (total + ranks - 1) / ranks;
    std::vector<int> seen(lengths.size());
    for (const ScheduleRound& wave :
         schedule_bytescale(lengths, {.num_ranks = ranks, .cap_tokens = cap})) {
      std::vector<int> busy(static_cast<std::size_t>(ranks));
      for (const GroupBatch& item : wave) {
        std::int64_t tokens = 0;
        for (const std::int32_t s : item.sequences) {
          ++seen[static_cast<std::size_t>(s)];
          tokens += lengths[static_cast<std::size_t>(s)];
        }
        EXPECT_EQ(item.size, (tokens + cap - 1) / cap);
        for (std::int32_t r = item.first; r < item.first + item.size; ++r) {
          EXPECT_EQ(busy.at(static_cast<std::size_t>(r))++, 0);
        }
      }
    }
    EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
  }
}

TEST(Bytescale, MakesRoundsOfWavesOrOneOfAll) {
  const Workload workload = default_batch_of({150, 250, 60, 70, 30, 40, 30});
  const auto rounds = [&](const char* sync) {
    const Arrangement arrangement = bytescale_strategy().arrange(
        workload, cluster_of(1, 6), request_with({{"cap", "100"}, {"sync", sync}}));
    const Plan plan = build_plan(workload, cluster_of(1, 6), arrangement);
    const VerifyReport report = verify(plan);
    EXPECT_TRUE(report.ok()) << report.violations.front();
    return plan.rounds.size();
  };
  EXPECT_EQ(rounds("wave"), 2U);
  EXPECT_EQ(rounds("step"), 1U);
}

TEST(Bytescale, RefusesSequencesThatNeedMoreThanAllRanks) {
  const auto reason = bytescale_strategy().unsupported(
      default_batch_of({100, 500}), cluster_of(1, 4), request_with({{"cap", "100"}}));
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("4 ranks of 100 tokens"), std::string::npos) << *reason;
}

TEST(Bytescale, PlansAreValidOnAnyNumberOfDevices) {
  for (const std::int32_t devices : {1, 2, 3, 5, 6, 8, 12}) {
    for (const char* mask : {"causal", "lambda:16,100", "shared_question:0.2,4"}) {
      for (const char* balanced : {"off", "on"}) {
        for (const char* sync : {"wave", "step"}) {
          SCOPED_TRACE(
              fmt::format("{} devices {} balanced {} sync {}", devices, mask, balanced, sync));
          const Workload workload = default_batch_of({900, 17, 450, 3, 60, 1, 220, 380, 90}, mask);
          const Plan plan = build_plan(
              workload, cluster_of(1, devices),
              bytescale_strategy().arrange(
                  workload, cluster_of(1, devices),
                  request_with({{"balanced", balanced}, {"sync", sync}, {"cap", "900"}})));
          const VerifyReport report = verify(plan);
          EXPECT_TRUE(report.ok()) << report.violations.front();
          EXPECT_TRUE(report.grouped_launches_ok);
        }
      }
    }
  }
}

}  // namespace
}  // namespace contextile
