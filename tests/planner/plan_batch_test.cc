// plan_batch and compare_strategies: the functions that a front end calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/planner.h"
#include "support/batches.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;

const std::vector<std::int64_t> kLengths = {9000, 300, 4100, 2500, 40};

TEST(PlanBatch, ReturnsAPlanWithItsProofStatisticsAndTimes) {
  const Workload workload = batch_of(kLengths);
  const Cluster cluster = load_cluster("dgx-h200:2x4");
  const PlannedBatch planned = plan_batch(workload, cluster, {"magi", {}});
  ASSERT_TRUE(planned.verified.ok());
  EXPECT_EQ(planned.plan->strategy, "magi");
  EXPECT_EQ(planned.plan->num_tokens(), workload.num_tokens());
  EXPECT_EQ(planned.statistics.tokens, workload.num_tokens());
  EXPECT_TRUE(planned.statistics.backward);
  EXPECT_GT(planned.planning_s(), 0);
}

TEST(PlanBatch, RefusesHomesAndClustersThatCannotBe) {
  const std::vector<std::int64_t> lengths = {50};
  Workload workload = make_workload(lengths, AttentionShape{});
  workload.home = {{{0, 20}, Rank{0}}, {{20, 50}, Rank{7}}};
  for (const char* strategy : {"dcp", "zigzag", "fcp"}) {
    EXPECT_THROW(static_cast<void>(plan_batch(workload, load_cluster("local:1x2"), {strategy})),
                 InvalidArgument);
  }
  workload.home.clear();
  Cluster cluster = load_cluster("local:1x2");
  cluster.devices_per_node = 0;
  EXPECT_THROW(static_cast<void>(plan_batch(workload, cluster, {"dcp"})), InvalidArgument);
}

// Workloads made by hand, each with the message of check_workload.
std::vector<Workload> invalid_workloads() {
  const Workload valid = batch_of(kLengths);
  std::vector<Workload> workloads(5, valid);
  workloads[0].shape.kv_heads = 5;
  workloads[1].masks[0].mask.bands.push_back(valid.masks[0].mask.bands[0]);  // twice the same pairs
  workloads[2].masks.clear();
  workloads[3].home = {{{0, 20}, Rank{0}}};  // not all tokens
  workloads[4].sequences[1].begin += 1;
  return workloads;
}

TEST(PlanBatch, EveryEntryPointRefusesAnInvalidWorkloadInTheSameWords) {
  const Cluster cluster = load_cluster("dgx-h200:1x4");
  const Workload valid = batch_of(kLengths);
  const Arrangement arrangement = find_strategy("ring").arrange(valid, cluster, StrategyRequest{});
  const PlannedBatch planned = plan_batch(valid, cluster, {"ring"});
  const Simulation simulation = simulate(*planned.plan, cluster);
  for (const Workload& workload : invalid_workloads()) {
    const std::string reason = message_of([&] { check_workload(workload); });
    ASSERT_NE(reason, "");
    SCOPED_TRACE(reason);
    for (const char* strategy : {"ring", "dcp", "fcp", "magi", "auto"}) {
      EXPECT_EQ(message_of([&] { return plan_batch(workload, cluster, {strategy}); }), reason);
    }
    EXPECT_EQ(message_of([&] { return plan_arrangement(workload, cluster, arrangement); }), reason);
    const std::vector<StrategyChoice> choices = {{"ring"}, {"zigzag"}};
    EXPECT_EQ(message_of([&] {
                return compare_strategies({cluster, {valid, workload}, {}}, choices);
              }),
              reason);
    EXPECT_EQ(
        message_of([&] { return bound_beside(*planned.plan, workload, cluster, simulation); }),
        reason);
    EXPECT_EQ(message_of([&] { return lower_bound(workload, cluster, Direction::kForward); }),
              reason);
  }
}

TEST(PlanBatch, RefusesBlocksThatMakeTooManyTilesBeforeItBeginsUnlessForced) {
  struct Begun {};
  PlanOptions options{.block_size = 1};
  options.progress = [](std::string_view, std::int64_t, std::int64_t) { throw Begun{}; };
  const auto plan = [&] {
    return plan_batch(batch_of({1 << 20}), load_cluster("dgx-h200:1x4"), {"zigzag"}, options);
  };
  EXPECT_THAT(message_of(plan),
              HasSubstr("found about 5.5e+11 (1048576 tokens in blocks of 1); blocks of 64"));
  options.force = true;
  EXPECT_THROW(static_cast<void>(plan()), Begun);
  options.force = false;
  options.block_size.reset();
  EXPECT_THROW(static_cast<void>(plan()), Begun);
}

TEST(PlanBatch, TellsHowFarItHasCome) {
  struct Told {
    std::string what;
    std::int64_t done;
    std::int64_t total;
  };
  std::vector<Told> told;
  PlanOptions options;
  options.progress = [&](std::string_view what, std::int64_t done, std::int64_t total) {
    told.push_back({std::string(what), done, total});
  };
  const PlannedBatch planned =
      plan_batch(batch_of(kLengths), load_cluster("dgx-h200:1x4"), {"auto"}, options);
  EXPECT_TRUE(planned.verified.ok());
  const auto of = [&](std::string_view what) {
    return std::ranges::count(told, what, &Told::what);
  };
  EXPECT_EQ(of("arranging"), 1);
  EXPECT_EQ(of("building the plan"), 1);
  EXPECT_EQ(of("verifying"), 1);
  EXPECT_GT(of("placing tiles"), 1);
  EXPECT_GT(of("simulating placements"), 1);
  EXPECT_GT(of("simulating other strategies"), 1);
  const auto searched = std::ranges::find(told, "building the plan", &Told::what) - 1;
  EXPECT_GT(searched->done, searched->total * 9 / 10);
  for (const Told& one : told) EXPECT_LE(one.done, one.total) << one.what;
}

TEST(PlanBatch, EndsWhereItsHookThrows) {
  struct Enough {};  // no Error: it is not a failure
  const Cluster cluster = load_cluster("dgx-h200:1x4");
  for (const int most : {0, 1, 5, 20}) {
    int told = 0;
    PlanOptions options;
    options.progress = [&](std::string_view, std::int64_t, std::int64_t) {
      if (told++ == most) throw Enough{};
    };
    EXPECT_THROW((void)plan_batch(batch_of(kLengths), cluster, {"auto"}, options), Enough) << most;
  }
  EXPECT_TRUE(plan_batch(batch_of(kLengths), cluster, {"auto"}).verified.ok());
}

TEST(PlanBatch, FollowsEveryOption) {
  const PlannedBatch planned =
      plan_batch(batch_of(kLengths), load_cluster("dgx-h200:1x4"), {"dcp", {{"divisions", "3"}}},
                 {.block_size = 512,
                  .wire = Dtype::kBf16,
                  .backward = false,
                  .limits = {.tokens = 16000, .memory_bytes = 1'000'000'000}});
  const Plan& plan = *planned.plan;
  EXPECT_EQ(plan.options.at("block_size"), "512");
  EXPECT_EQ(plan.options.at("divisions"), "3");
  EXPECT_EQ(plan.partial_wire, Dtype::kBf16);
  EXPECT_FALSE(plan.has_direction(Direction::kBackward));
  EXPECT_EQ(plan.rounds[0].limits.tokens, 16000);
  EXPECT_EQ(plan.rounds[0].limits.memory_bytes, 1'000'000'000);
}

// Strategies that leave their block size open: the planner tries each of their sizes.
TEST(PlanBatch, TakesTheBlockSizeThatIsPredictedFastestWithoutLinearLayersIfTheyAreFree) {
  const Workload workload = batch_of(kLengths);
  const Cluster cluster = load_cluster("p4de:2x4");
  for (const StrategyChoice& choice : parse_strategies("dcp,fcp:block=auto")) {
    SCOPED_TRACE(choice.name);
    const std::vector<std::int64_t> sizes =
        find_strategy(choice.name).block_sizes(request_of(choice, {}));
    ASSERT_GT(sizes.size(), 1U);
    double fastest_us = 1e30;
    for (const std::int64_t size : sizes) {
      StrategyChoice fixed = choice;
      fixed.options.erase("block");
      const PlannedBatch planned = plan_batch(workload, cluster, fixed, {.block_size = size});
      fastest_us = std::min(fastest_us, simulate(*planned.plan, cluster).time_us());
    }
    const PlannedBatch chosen = plan_batch(workload, cluster, choice, {.linear_us_per_token = 0});
    EXPECT_DOUBLE_EQ(simulate(*chosen.plan, cluster).time_us(), fastest_us);
  }
}

TEST(PlanBatch, SaysWhyAStrategyDoesNotApply) {
  const Workload workload = batch_of(kLengths);
  const Cluster cluster = load_cluster("dgx-h200:1x7");  // no multiple of the KV heads
  const auto reason = unsupported_reason(workload, cluster, {"ulysses", {}});
  ASSERT_TRUE(reason);
  EXPECT_THAT(*reason, HasSubstr("KV heads"));
  EXPECT_THAT(message_of([&] {
                (void)plan_batch(workload, cluster, {"ulysses", {}});
              }),
              HasSubstr(*reason));
  EXPECT_THAT(message_of([&] {
                (void)plan_batch(workload, cluster, {"zigzg", {}});
              }),
              HasSubstr("did you mean"));
}

TEST(CompareStrategies, TellsEveryPlanBeforeItKeepsOnlyItsDescription) {
  const PlanInput input{
      load_cluster("dgx-h200:1x7"), {batch_of(kLengths), batch_of({5000, 6000})}, {}};
  const std::vector<StrategyChoice> choices = parse_strategies("ring,ulysses,magi");
  std::vector<std::string> seen;
  ComparisonHooks hooks;
  hooks.planned = [&](std::size_t strategy, std::size_t batch, const PlannedBatch& planned) {
    EXPECT_FALSE(planned.plan->rounds[0].devices.empty());
    seen.push_back(choices[strategy].name + std::to_string(batch));
  };
  const std::vector<ComparedStrategy> compared = compare_strategies(input, choices, hooks);
  EXPECT_THAT(seen, testing::ElementsAre("ring0", "ring1", "magi0", "magi1"));
  ASSERT_EQ(compared.size(), 3U);
  EXPECT_THAT(compared[1].skipped, HasSubstr("KV heads"));
  EXPECT_TRUE(compared[1].batches.empty());
  ASSERT_EQ(compared[2].batches.size(), 2U);
  EXPECT_TRUE(compared[2].batches[1].plan->rounds[0].devices.empty());
  EXPECT_EQ(compared[2].batches[1].plan->num_tokens(), 11000);
  ASSERT_EQ(compared[2].bounds.size(), 2U);
  EXPECT_LE(compared[2].bounds[0].forward->time_us, compared[2].simulations[0].forward->time_us);
}

TEST(CompareStrategies, KeepsWhatGoesWrongInsideOneStrategy) {
  const PlanInput input{load_cluster("dgx-h200:1x4"), {batch_of(kLengths)}, {}};
  const std::vector<StrategyChoice> choices = parse_strategies("ring,magi");
  ComparisonHooks hooks;
  hooks.planned = [](std::size_t strategy, std::size_t, const PlannedBatch&) {
    if (strategy == 0) throw InvalidArgument("no room to run");
  };
  const std::vector<ComparedStrategy> compared = compare_strategies(input, choices, hooks);
  EXPECT_EQ(compared[0].failed, "no room to run");
  EXPECT_FALSE(compared[0].ok());
  EXPECT_TRUE(compared[1].ok());
  hooks.planned = [](std::size_t, std::size_t, const PlannedBatch&) {
    throw TransportError("rank 1 died");
  };
  EXPECT_THROW((void)compare_strategies(input, choices, hooks), TransportError);
}

}  // namespace
}  // namespace contextile
