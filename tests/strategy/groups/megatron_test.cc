#include "strategy/groups/megatron.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/plan_build.h"
#include "contextile/plan.h"
#include "contextile/verify.h"
#include "strategy/groups/megatron_balanced.h"
#include "strategy/groups/megatron_packing.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

const std::vector<std::int64_t> kBlogLengths = {32768, 16384, 8192, 4096, 4096, 4096, 4096, 2048};

// ------------------------------------------------------------------------------- schedules

// Checks that every sample is in exactly one round, on consecutive ranks of one group.
void expect_every_sample_once(const std::vector<RankSamples>& rounds, std::size_t num_samples) {
  std::vector<int> seen(num_samples);
  for (const RankSamples& round : rounds) {
    for (const GroupBatch& item : group_items(round, SampleOrder::kOneByOne)) {
      ++seen[static_cast<std::size_t>(item.sequences[0])];
    }
  }
  EXPECT_EQ(seen, std::vector<int>(num_samples, 1));
}

TEST(BalancedCp, RunsMegatronsWorkedExampleInTwoRounds) {
  const auto rounds = schedule_balanced_cp(kBlogLengths, {.num_ranks = 8, .cap_tokens = 4096});
  ASSERT_EQ(rounds.size(), 2U);
  EXPECT_EQ(rounds[0].samples, RankSamples(8, {0}));
  EXPECT_EQ(rounds[1].samples, (RankSamples{{1}, {1}, {1}, {1}, {2}, {2}, {3, 5, 7}, {4, 6}}));
  EXPECT_EQ(rounds[1].loads[6], 2 * 4096.0 * 4096 + 2048.0 * 2048);
}

TEST(BalancedCp, WorksOnAnyNumberOfRanks) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const std::vector<std::int64_t> lengths = random_lengths(rng, 30, 3000);
    const auto ranks = static_cast<std::int32_t>(random_between(rng, 1, 17));
    std::int64_t total = 0;
    for (const std::int64_t length : lengths) total += length;
    const std::int64_t cap = (total + ranks - 1) / ranks;
    std::vector<RankSamples> rounds;
    for (const ScheduledRound& round :
         schedule_balanced_cp(lengths, {.num_ranks = ranks, .cap_tokens = cap})) {
      rounds.push_back(round.samples);
      for (std::size_t r = 0; r < round.samples.size(); ++r) {
        EXPECT_FALSE(round.samples[r].empty()) << "rank " << r;
      }
      for (const GroupBatch& item : group_items(round.samples, SampleOrder::kOneByOne)) {
        EXPECT_LE(lengths[static_cast<std::size_t>(item.sequences[0])], item.size * cap);
        double work = 0;
        for (const std::int32_t s : round.samples[static_cast<std::size_t>(item.first)]) {
          const auto length = static_cast<double>(lengths[static_cast<std::size_t>(s)]);
          work += length * length / item.size;
        }
        EXPECT_NEAR(round.loads[static_cast<std::size_t>(item.first)], work, 1e-9 * work);
      }
    }
    expect_every_sample_once(rounds, lengths.size());
  }
}

TEST(BalancedCp, CountsAllSamplesOfAGrownGroupTheOriginalTheFirst) {
  // Four ranks take both samples, and the two other ranks join them.
  const std::vector<std::int64_t> lengths = {400, 390};
  const auto repaired = schedule_balanced_cp(lengths, {.num_ranks = 6, .cap_tokens = 100});
  const auto original = schedule_balanced_cp(lengths, {6, 100, UpstreamFaults::kReproduced});
  ASSERT_EQ(repaired.size(), 1U);
  ASSERT_EQ(original.size(), 1U);
  EXPECT_EQ(repaired[0].samples, RankSamples(6, {0, 1}));
  EXPECT_EQ(original[0].samples, repaired[0].samples);
  EXPECT_DOUBLE_EQ(repaired[0].loads[5], (400.0 * 400 + 390.0 * 390) / 6);
  EXPECT_DOUBLE_EQ(original[0].loads[5], 400.0 * 400 / 6);
}

TEST(BalancedCp, FailsWhereTheOriginalFailsWhenAskedTo) {
  // The five ranks needed of six round up to eight.
  const std::vector<std::int64_t> lengths = {500, 100};
  const auto rounds = schedule_balanced_cp(lengths, {.num_ranks = 6, .cap_tokens = 100});
  EXPECT_EQ(rounds[0].samples, RankSamples(6, {0}));
  EXPECT_THROW(
      static_cast<void>(schedule_balanced_cp(lengths, {6, 100, UpstreamFaults::kReproduced})),
      InvalidArgument);
  // Two groups of two leave one rank empty, which is too few to double a group.
  EXPECT_THROW(static_cast<void>(schedule_balanced_cp(std::vector<std::int64_t>{200, 200},
                                                      {5, 100, UpstreamFaults::kReproduced})),
               InvalidArgument);
  EXPECT_EQ(schedule_balanced_cp(std::vector<std::int64_t>{200, 200},
                                 {.num_ranks = 5, .cap_tokens = 100})[0]
                .samples,
            (RankSamples{{0}, {0}, {0}, {1}, {1}}));
}

TEST(BalancedCp, RefusesSequencesThatNeedMoreThanAllRanks) {
  EXPECT_THROW(static_cast<void>(schedule_balanced_cp(std::vector<std::int64_t>{401},
                                                      {.num_ranks = 4, .cap_tokens = 100})),
               InvalidArgument);
}

TEST(DynamicCp, KeepsEveryRankWithinItsCap) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const std::vector<std::int64_t> lengths = random_lengths(rng, 30, 3000);
    const auto ranks = static_cast<std::int32_t>(random_between(rng, 1, 17));
    std::int64_t total = 0;
    for (const std::int64_t length : lengths) total += length;
    const std::int64_t cap = (total + ranks - 1) / ranks;
    std::vector<RankSamples> rounds;
    for (const ScheduledRound& round :
         schedule_dynamic_cp(lengths, {.num_ranks = ranks, .cap_tokens = cap})) {
      rounds.push_back(round.samples);
      for (const GroupBatch& item : group_items(round.samples, SampleOrder::kPacked)) {
        double tokens = 0;
        for (const std::int32_t s : item.sequences) {
          tokens += static_cast<double>(lengths[static_cast<std::size_t>(s)]) / item.size;
        }
        EXPECT_LE(tokens, static_cast<double>(cap) + 1e-6);
      }
    }
    expect_every_sample_once(rounds, lengths.size());
    const std::int32_t multiple = 1 + static_cast<std::int32_t>(seed % 3);
    std::vector<RankSamples> aligned;
    try {
      aligned = align_rounds(rounds, multiple);
    } catch (const InvalidArgument&) {
      continue;  // too few samples
    }
    EXPECT_EQ(aligned.size() % static_cast<std::size_t>(multiple), 0U);
    expect_every_sample_once(aligned, lengths.size());
  }
}

TEST(DynamicCp, RefusesGroupsThatAreNoPowerOfTwo) {
  const std::vector<std::int64_t> lengths = {10, 20};
  EXPECT_THROW(static_cast<void>(schedule_dynamic_cp(lengths, {8, 100, 3})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(schedule_dynamic_cp(lengths, {4, 100, 8})), InvalidArgument);
}

TEST(AlignRounds, CutsTheLastRoundAtTheMiddleAndSpreadsBothParts) {
  const std::vector<RankSamples> rounds = {{{0}, {0}, {1}, {2}}};
  EXPECT_EQ(align_rounds(rounds, 2), (std::vector<RankSamples>{{{1}, {1}, {2}, {2}},  //
                                                               {{0}, {0}, {0}, {0}}}));
  EXPECT_EQ(align_rounds(rounds, 1), rounds);
  EXPECT_THROW(static_cast<void>(align_rounds({{{0}, {0}}}, 2)), InvalidArgument);
}

TEST(DpBalanced, FillsBinsInOrderAndSplitsTheLastOnes) {
  const std::vector<std::int64_t> lengths = {60, 50, 40, 30, 20, 10};
  // Bins of 100 tokens: {0}, {1, 2}, {3, 4, 5}. Two groups need four bins, so 5 gets its own.
  const auto rounds =
      schedule_dp_balanced(lengths, {.context_parallel = 2, .data_parallel = 2, .cap_tokens = 50});
  EXPECT_EQ(rounds, (std::vector<RankSamples>{{{0}, {0}, {1, 2}, {1, 2}},  //
                                              {{3, 4}, {3, 4}, {5}, {5}}}));
  EXPECT_THROW(static_cast<void>(schedule_dp_balanced(
                   lengths, {.context_parallel = 1, .data_parallel = 8, .cap_tokens = 100})),
               InvalidArgument);
}

// ------------------------------------------------------------------------------- plans

TEST(MegatronDynamic, RunsTheWorkedExampleAsTwoRoundsOfRings) {
  const Workload workload = default_batch_of(kBlogLengths);
  const Plan plan = build_plan(workload, cluster_of(1, 8),
                               megatron_dynamic_strategy().arrange(
                                   workload, cluster_of(1, 8), request_with({{"cap", "4096"}})));
  ASSERT_EQ(plan.rounds.size(), 2U);
  const VerifyReport report = verify(plan);
  EXPECT_TRUE(report.ok()) << report.violations.front();
  EXPECT_TRUE(report.grouped_launches_ok);
  // Forward has rings of 8, of 4 and of 2 ranks with 4096 tokens per rank; two ranks are then
  // alone.
  const std::int64_t share = 4096 * 8 * 2 * 128 * 2;
  const PlanStats stats = statistics(plan);
  std::vector<std::int64_t> sent;
  for (const DeviceStats& device : stats.forward->devices)
    sent.push_back(device.sent_bytes / share);
  EXPECT_EQ(sent, (std::vector<std::int64_t>{10, 10, 10, 10, 8, 8, 7, 7}));
}

TEST(MegatronPacked, PacksTheSamplesOfAGroupIntoOneRing) {
  const Workload workload = default_batch_of({2048, 2000, 900, 900, 90, 64});
  const Arrangement arrangement = megatron_packed_strategy().arrange(
      workload, cluster_of(1, 4), request_with({{"cap", "2048"}}));
  for (const ArrangedRound& round : arrangement.rounds) {
    std::map<std::int32_t, int> blocks;
    for (const Rank owner : round.owners) ++blocks[owner.value];
    for (const auto& [rank, count] : blocks) EXPECT_EQ(count, 1) << "rank " << rank;
  }
}

TEST(MegatronPacked, HasAsManyRoundsAsAPipelineNeeds) {
  const Workload workload = default_batch_of(kBlogLengths);
  const auto rounds = [&](const char* multiple) {
    return megatron_packed_strategy()
        .arrange(workload, cluster_of(1, 8),
                 request_with({{"cap", "4096"}, {"vpp_multiple", multiple}}))
        .rounds.size();
  };
  EXPECT_EQ(rounds("1"), 3U);
  EXPECT_EQ(rounds("2"), 4U);
  EXPECT_EQ(rounds("4"), 4U);
}

TEST(MegatronPacked, GivesEqualGroupsTheirBins) {
  const Workload workload = default_batch_of({600, 500, 400, 300, 200, 100});
  const Arrangement arrangement = megatron_packed_strategy().arrange(
      workload, cluster_of(1, 4),
      request_with({{"scheduler", "dp_balanced"}, {"cp", "2"}, {"cap", "500"}}));
  EXPECT_EQ(arrangement.rounds.size(), 2U);
  const auto reason = megatron_packed_strategy().unsupported(
      workload, cluster_of(1, 4), request_with({{"scheduler", "dp_balanced"}, {"cp", "3"}}));
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("divisor of 4 devices"), std::string::npos) << *reason;
}

// Returns the most sequences that groups of two ranks attend in a round.
std::size_t most_sequences_of_a_pair(const Workload& workload, const std::string& limit) {
  const Arrangement arrangement = megatron_packed_strategy().arrange(
      workload, cluster_of(1, 4),
      request_with({{"scheduler", "dp_balanced"}, {"cp", "2"}, {"max_num_seqs", limit}}));
  std::size_t most = 0;
  for (const ArrangedRound& round : arrangement.rounds) {
    std::map<std::int32_t, std::set<std::int64_t>> ends_of_pair;
    for (std::size_t b = 0; b < round.owners.size(); ++b) {
      auto& ends = ends_of_pair[round.owners[b].value / 2];
      for (const Range& range : round.blocks.ranges(BlockId{static_cast<std::int32_t>(b)})) {
        const auto sequence = std::upper_bound(
            workload.sequences.begin(), workload.sequences.end(), range.begin,
            [](std::int64_t token, const Range& sequence) { return token < sequence.end; });
        ends.insert(sequence->end);
      }
    }
    for (const auto& [pair, ends] : ends_of_pair) most = std::max(most, ends.size());
  }
  return most;
}

TEST(MegatronPacked, GivesAGroupAtMostSoManySequences) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    std::vector<std::int64_t> lengths = {20000};  // leaves room for many of the others
    for (int i = 0; i < 25; ++i) lengths.push_back(random_between(rng, 1, 2000));
    const Workload workload = default_batch_of(lengths);
    ASSERT_GT(most_sequences_of_a_pair(workload, "0"), 5U);
    for (const std::size_t limit : {1U, 2U, 5U}) {
      EXPECT_EQ(most_sequences_of_a_pair(workload, fmt::format("{}", limit)), limit);
    }
  }
}

TEST(Megatron, SaysWhatItCannotDo) {
  Workload workload = default_batch_of({100, 200});
  for (const Strategy* strategy : {&megatron_dynamic_strategy(), &megatron_packed_strategy()}) {
    SCOPED_TRACE(strategy->name());
    const auto too_long =
        strategy->unsupported(workload, cluster_of(1, 4), request_with({{"cap", "40"}}));
    ASSERT_TRUE(too_long);
    EXPECT_NE(too_long->find("found sequence 1 of 200 tokens"), std::string::npos) << *too_long;
    EXPECT_THROW(static_cast<void>(
                     strategy->arrange(workload, cluster_of(1, 4), request_with({{"cap", "40"}}))),
                 InvalidArgument);
    EXPECT_FALSE(strategy->unsupported(workload, cluster_of(1, 4), {}));
  }
  workload.masks[0].mask.bands = {{{0, 300}, {0, 300}}};
  for (const Strategy* strategy : {&megatron_dynamic_strategy(), &megatron_packed_strategy()}) {
    const auto crosses = strategy->unsupported(workload, cluster_of(1, 4), {});
    ASSERT_TRUE(crosses);
    EXPECT_NE(crosses->find("inside sequences"), std::string::npos) << *crosses;
    EXPECT_THROW(static_cast<void>(strategy->arrange(workload, cluster_of(1, 4), {})),
                 InvalidArgument);
  }
}

TEST(Megatron, PlansAreValidOnAnyNumberOfDevices) {
  for (const std::int32_t devices : {1, 2, 3, 5, 6, 8, 12}) {
    for (const char* mask : {"causal", "lambda:16,100", "shared_question:0.2,4"}) {
      for (const Strategy* strategy : {&megatron_dynamic_strategy(), &megatron_packed_strategy()}) {
        SCOPED_TRACE(fmt::format("{} {} devices {}", strategy->name(), devices, mask));
        const Workload workload = default_batch_of({900, 17, 450, 3, 60, 1, 220, 380, 90}, mask);
        const Plan plan = build_plan(workload, cluster_of(1, devices),
                                     strategy->arrange(workload, cluster_of(1, devices), {}));
        const VerifyReport report = verify(plan);
        EXPECT_TRUE(report.ok()) << report.violations.front();
        EXPECT_TRUE(report.grouped_launches_ok);
      }
    }
  }
}

TEST(Megatron, PlansOfSeveralRoundsKeepTokensAtHome) {
  Workload workload = default_batch_of(kBlogLengths);
  for (std::int64_t begin = 0; begin < workload.num_tokens(); begin += 3000) {
    const std::int64_t end = std::min(begin + 3000, workload.num_tokens());
    workload.home.push_back({{begin, end}, Rank{static_cast<std::int32_t>(begin / 3000 % 8)}});
  }
  check_workload(workload);
  for (const Strategy* strategy : {&megatron_dynamic_strategy(), &megatron_packed_strategy()}) {
    SCOPED_TRACE(strategy->name());
    const Plan plan =
        build_plan(workload, cluster_of(1, 8),
                   strategy->arrange(workload, cluster_of(1, 8), request_with({{"cap", "4096"}})));
    EXPECT_GE(plan.rounds.size(), 2U);
    const VerifyReport report = verify(plan);
    EXPECT_TRUE(report.ok()) << report.violations.front();
    EXPECT_TRUE(report.grouped_launches_ok);
  }
}

}  // namespace
}  // namespace contextile
