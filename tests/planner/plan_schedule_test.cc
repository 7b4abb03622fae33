// Batches as micro-batches of groups of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "contextile/schedule.h"
#include "contextile/simulate.h"
#include "support/batches.h"
#include "support/mask_support.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::HasSubstr;

const char* const kScheduled[] = {"bytescale", "megatron_dynamic", "megatron_packed"};

std::string schedule_message(const Workload& workload, const Cluster& cluster,
                             const StrategyChoice& choice,
                             const std::optional<StrategyChoice>& inside = {}) {
  return message_of(
      [&] { static_cast<void>(plan_schedule(workload, cluster, choice, {}, inside)); });
}

TEST(PlanSchedule, RunsEverySequenceOnceInVerifiedPlansOfItsGroup) {
  Rng rng(3);
  for (const char* name : kScheduled) {
    for (const std::int32_t devices : {1, 6, 8}) {
      SCOPED_TRACE(std::string(name) + " on " + std::to_string(devices));
      const Workload batch = batch_of(random_lengths(rng, 20, 3000), "lambda:16,200");
      const PlannedSchedule schedule =
          plan_schedule(batch, cluster_of("dgx-h200", 1, devices), {name});
      EXPECT_TRUE(schedule.ok());
      EXPECT_EQ(schedule.num_ranks, devices);
      std::vector<std::int32_t> sequences;
      for (const auto& round : schedule.rounds) {
        for (const auto& [group, plan] : round) {
          sequences.insert(sequences.end(), group.sequences.begin(), group.sequences.end());
          EXPECT_GE(group.first, 0);
          EXPECT_LE(group.first + group.size, devices);
          const Plan& planned = *schedule.plans.at(plan).planned.plan;
          EXPECT_EQ(planned.num_devices(), group.size);
          std::int64_t tokens = 0;
          for (const std::int32_t s : group.sequences) {
            tokens += batch.sequences[static_cast<std::size_t>(s)].size();
          }
          EXPECT_EQ(planned.num_tokens(), tokens);
        }
      }
      std::ranges::sort(sequences);
      std::vector<std::int32_t> all(batch.sequences.size());
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(sequences, all);
    }
  }
}

TEST(PlanSchedule, PlansAMicroBatchAsItsSequencesAlone) {
  const Cluster cluster = cluster_of("dgx-h200", 1, 8);
  const PlannedSchedule schedule =
      plan_schedule(default_batch_of({500, 90'000, 40'572, 1000}), cluster, {"megatron_dynamic"});
  ASSERT_EQ(schedule.rounds.size(), 2U);
  const ScheduledMicroBatch& second = schedule.rounds[1].front();
  EXPECT_EQ(second.group, (GroupBatch{0, 4, {2}}));
  const PlannedBatch alone =
      plan_batch(default_batch_of({40'572}), cluster.consecutive(Rank{0}, 4), {"zigzag"});
  EXPECT_EQ(schedule.plans[second.plan].planned.plan->digest, alone.plan->digest);
}

TEST(PlanSchedule, EqualMicroBatchesShareOnePlan) {
  const std::vector<std::int64_t> lengths(64, 100);
  const PlannedSchedule schedule =
      plan_schedule(batch_of(lengths), cluster_of("dgx-h200", 1, 8), {"megatron_dynamic"});
  EXPECT_EQ(schedule.num_micro_batches(), 64U);
  EXPECT_EQ(schedule.plans.size(), 1U);
}

TEST(PlanSchedule, ListsTheMicroBatchesOfARank) {
  const PlannedSchedule schedule =
      plan_schedule(default_batch_of({500, 90'000, 40'572, 1000}), cluster_of("dgx-h200", 1, 8),
                    {"megatron_dynamic"});
  const auto own = schedule.of(Rank{5});
  ASSERT_EQ(own.size(), 2U);
  ASSERT_EQ(own[0].size(), 1U);
  EXPECT_EQ(own[0].front()->group.size, 8);
  ASSERT_EQ(own[1].size(), 1U);
  EXPECT_EQ(own[1].front()->group, (GroupBatch{4, 2, {3}}));
  EXPECT_THAT(message_of([&] { static_cast<void>(schedule.of(Rank{8})); }),
              HasSubstr("expected a rank below 8, found 8"));
}

TEST(PlanSchedule, LimitsHoldForOneMicroBatchAtATime) {
  const Workload batch = default_batch_of({90'000, 40'572, 1000, 500});
  const Cluster cluster = cluster_of("dgx-h200", 1, 8);
  PlanOptions options;
  options.limits.tokens = 11'250;
  EXPECT_TRUE(plan_schedule(batch, cluster, {"megatron_dynamic"}, options).ok());
  // A static group holds 132000 / 8.
  EXPECT_FALSE(plan_batch(batch, cluster, {"zigzag"}, options).verified.ok());
  options.limits.tokens = 11'000;
  EXPECT_FALSE(plan_schedule(batch, cluster, {"megatron_dynamic"}, options).ok());
}

TEST(PlanSchedule, TakesAnotherStrategyInsideTheGroups) {
  const Workload batch = default_batch_of({9000, 4000, 100});
  const Cluster cluster = cluster_of("dgx-h200", 1, 4);
  const PlannedSchedule schedule =
      plan_schedule(batch, cluster, {"megatron_packed"}, {}, StrategyChoice{"dcp"});
  EXPECT_TRUE(schedule.ok());
  for (const SchedulePlan& plan : schedule.plans) EXPECT_EQ(plan.planned.plan->strategy, "dcp");
  EXPECT_THAT(schedule_message(batch_of({9000}), cluster, {"megatron_packed"},
                               StrategyChoice{"hybrid", {{"head_parallel", "4"}}}),
              testing::AllOf(HasSubstr("schedule, sequence 0 on ranks 0 to 3"),
                             HasSubstr("KV heads (2), found 4")));
}

TEST(PlanSchedule, GroupsOfOneRankNeedNoStrategyForMany) {
  const Workload batch = default_batch_of({9000, 100, 100, 100});
  const Cluster cluster = cluster_of("dgx-h200", 1, 4);
  const StrategyChoice inside = {"hybrid", {{"head_parallel", "2"}}};
  const PlannedSchedule schedule = plan_schedule(batch, cluster, {"megatron_dynamic"}, {}, inside);
  EXPECT_TRUE(schedule.ok());
  std::set<std::string> of_one;
  std::set<std::string> of_many;
  for (const SchedulePlan& plan : schedule.plans) {
    (plan.cluster.num_devices() == 1 ? of_one : of_many).insert(plan.planned.plan->strategy);
  }
  EXPECT_THAT(of_one, testing::ElementsAre("zigzag"));
  EXPECT_THAT(of_many, testing::ElementsAre("hybrid"));
  EXPECT_THAT(schedule_message(batch, cluster, {"megatron_dynamic"}, {{"hybrid", {{"x", "2"}}}}),
              HasSubstr("option"));
}

TEST(PlanSchedule, ByteScaleSendsGradientsInF32AsItsOnePlanDoes) {
  const Workload batch = default_batch_of({30'000, 2000});
  const Cluster cluster = cluster_of("dgx-h200", 1, 4);
  for (const char* name : kScheduled) {
    const PlannedSchedule schedule = plan_schedule(batch, cluster, {name});
    EXPECT_EQ(schedule.plans.front().planned.plan->partial_wire,
              plan_batch(batch, cluster, {name}).plan->partial_wire)
        << name;
  }
}

TEST(PlanSchedule, RefusesWhatHasNoSchedule) {
  const Cluster cluster = cluster_of("dgx-h200", 1, 4);
  EXPECT_THAT(schedule_message(batch_of({4000}), cluster, {"zigzag"}),
              HasSubstr("zigzag: runs a batch at once: expected a strategy that schedules "
                        "micro-batches (bytescale, megatron_dynamic, megatron_packed)"));
  Workload at_home = batch_of({4000});
  at_home.home = {{{0, 4000}, Rank{1}}};
  EXPECT_THAT(schedule_message(at_home, cluster, {"bytescale"}),
              HasSubstr("expected no home of tokens, found one"));
  EXPECT_THAT(schedule_message(batch_of({4000}), cluster, {"bytescale", {{"cap", "10"}}}),
              HasSubstr("option cap"));
  EXPECT_THAT(schedule_message(batch_of({4000}), cluster, {"bytescale", {{"cop", "10"}}}),
              HasSubstr("cop"));
  EXPECT_THROW(static_cast<void>(find_strategy("ring").schedule(at_home, cluster, {})),
               InvalidArgument);
}

TEST(PlanSchedule, NamesAMicroBatch) {
  const PlannedSchedule schedule =
      plan_schedule(default_batch_of({500, 90'000, 40'572, 1000}), cluster_of("dgx-h200", 1, 8),
                    {"megatron_dynamic"});
  const std::size_t plan = schedule.rounds[1][1].plan;
  EXPECT_EQ(micro_batch_text(schedule, plan), "round 1, sequence 3 on ranks 4 to 5");
  EXPECT_THROW(static_cast<void>(micro_batch_text(schedule, 99)), InvalidArgument);
}

TEST(PlanSchedule, RefusesOptionsOfTheOtherScheduler) {
  const Workload batch = default_batch_of({4000, 300});
  const Cluster cluster = cluster_of("dgx-h200", 1, 4);
  const auto message = [&](const std::map<std::string, std::string>& options) {
    return schedule_message(batch, cluster, {"megatron_packed", options});
  };
  EXPECT_THAT(message({{"cp", "2"}}), HasSubstr("option cp: expected scheduler=dp_balanced"));
  EXPECT_THAT(message({{"max_num_seqs", "1"}}), HasSubstr("option max_num_seqs"));
  EXPECT_THAT(message({{"scheduler", "dp_balanced"}, {"min_cp", "2"}}),
              HasSubstr("option min_cp: expected scheduler=dynamic"));
}

TEST(PredictSchedule, RefusesACostThatIsNone) {
  const PlannedSchedule schedule =
      plan_schedule(batch_of({400}), cluster_of("dgx-h200", 1, 2), {"bytescale"});
  for (const double us :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_THROW(static_cast<void>(predict_schedule(schedule, us)), InvalidArgument);
  }
}

TEST(PredictSchedule, AddsUpRoundsAndWaits) {
  const Cluster cluster = cluster_of("dgx-h200", 1, 8);
  const PlannedSchedule schedule =
      plan_schedule(default_batch_of({500, 90'000, 40'572, 1000}), cluster, {"megatron_dynamic"});
  const auto us = [&](std::size_t round, std::size_t i) {
    const SchedulePlan& plan = schedule.plans[schedule.rounds[round][i].plan];
    return layer_us(plan.planned, simulate(*plan.planned.plan, plan.cluster), 0.25);
  };
  const SchedulePrediction found = predict_schedule(schedule, 0.25);
  ASSERT_EQ(schedule.rounds[1].size(), 3U);
  EXPECT_DOUBLE_EQ(found.rounds_us[0], us(0, 0));
  EXPECT_DOUBLE_EQ(found.rounds_us[1], std::max({us(1, 0), us(1, 1), us(1, 2)}));
  EXPECT_DOUBLE_EQ(found.time_us, found.rounds_us[0] + found.rounds_us[1]);
  const double busy_us = 8 * us(0, 0) + 4 * us(1, 0) + 2 * us(1, 1) + 2 * us(1, 2);
  EXPECT_NEAR(found.idle_share, 1 - busy_us / (8 * found.time_us), 1e-12);
  EXPECT_EQ(found.most_tokens(), 11'250);
  std::int64_t tokens = 0;
  for (const ScheduledRank& rank : found.ranks) tokens += rank.tokens;
  EXPECT_EQ(tokens, 500 + 90'000 + 40'572 + 1000);
  EXPECT_EQ(found.ranks[7].micro_batches, 2);
  EXPECT_GT(found.memory_bytes(), 0);
}

TEST(PredictSchedule, AMicroBatchWaitsForItsWholeGroup) {
  // Waves of bytescale without barriers: groups overlap.
  const PlannedSchedule schedule = plan_schedule(
      default_batch_of({20'000, 20'000, 40'000, 10'000}), cluster_of("dgx-h200", 1, 4),
      {"bytescale", {{"cap", "20000"}, {"sync", "step"}}});
  ASSERT_EQ(schedule.rounds.size(), 1U);
  const SchedulePrediction found = predict_schedule(schedule);
  for (const ScheduledRank& rank : found.ranks) EXPECT_LE(rank.busy_us, found.time_us);
  EXPECT_GE(found.idle_share, 0);
  EXPECT_LT(found.idle_share, 1);
}

}  // namespace
}  // namespace contextile
