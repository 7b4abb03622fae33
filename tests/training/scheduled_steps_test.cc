// Training steps whose micro-batches a strategy schedules over groups of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "contextile/advanced/step_planner.h"
#include "contextile/cluster.h"

namespace contextile {
namespace {

using testing::HasSubstr;

class ScheduledSteps : public ::testing::Test {
 protected:
  ScheduledSteps() {
    job_.model = load_model("llama-3-8b");
    job_.cluster = load_cluster("dgx-h200:1x8");
    job_.options.recompute = Recompute::kSelective;
    job_.micro_batches = {{500, 90'000, 40'572, 1000}};
  }

  StepOutcome predict(const StepSetting& setting) {
    StepPlanner planner(job_, [](const std::string&) {});
    return planner.predict(setting);
  }
  StepOutcome predict(const std::string& strategy, const ParallelSizes& sizes = {.cp = 8},
                      bool one_plan = false) {
    return predict({.sizes = sizes, .strategy = {strategy}, .one_plan = one_plan});
  }

  TrainingJob job_;
};

TEST_F(ScheduledSteps, HoldLessThanAStaticGroup) {
  const StepOutcome fixed = predict("zigzag");
  ASSERT_EQ(fixed.verdict, Verdict::kFits) << fixed.reason;
  for (const char* name : {"megatron_dynamic", "bytescale"}) {
    const StepOutcome outcome = predict(name);
    ASSERT_EQ(outcome.verdict, Verdict::kFits) << outcome.reason;
    EXPECT_LT(outcome.memory_bytes(), fixed.memory_bytes()) << name;
    // In one plan a rank holds the tokens of all rounds.
    EXPECT_GT(predict(name, {.cp = 8}, true).memory_bytes(), fixed.memory_bytes()) << name;
  }
}

TEST_F(ScheduledSteps, TheLargestMicroBatchOfARankFillsItsMemory) {
  // The longest document takes 11250 tokens of all ranks: as much as if it were alone.
  const StepOutcome outcome = predict("megatron_dynamic");
  job_.micro_batches = {{90'000}};
  const StepOutcome alone = predict("zigzag");
  EXPECT_EQ(outcome.memory.front().activations_bytes, alone.memory.front().activations_bytes);
}

TEST_F(ScheduledSteps, ReplicasShareOneSchedule) {
  job_.micro_batches = {{30'000, 500}, {2000, 2000, 2000}, {9000}, {16'000, 100}};
  std::int64_t tokens = 0;
  for (const BatchLengths& lengths : job_.micro_batches) {
    tokens = std::accumulate(lengths.begin(), lengths.end(), tokens);
  }
  for (const char* name : {"megatron_dynamic", "megatron_packed", "bytescale"}) {
    const StepOutcome outcome = predict(name, {.cp = 4, .dp = 2});
    ASSERT_EQ(outcome.verdict, Verdict::kFits) << name << ": " << outcome.reason;
    EXPECT_EQ(outcome.prediction->tokens, tokens) << name;
    EXPECT_EQ(outcome.prediction->replica_imbalance, 0) << name;
  }
}

TEST_F(ScheduledSteps, FlopsAreThoseOfTheBatch) {
  for (const char* name : {"megatron_dynamic", "bytescale"}) {
    const double scheduled = predict(name).prediction->model_flops;
    EXPECT_NEAR(scheduled / predict("zigzag").prediction->model_flops, 1, 1e-12) << name;
  }
}

TEST_F(ScheduledSteps, StagesRunRoundsOfOneMicroBatchARank) {
  job_.micro_batches = {{30'000, 20'000, 10'000, 5000, 4000, 4000, 300, 200, 100, 100, 50}};
  const ParallelSizes two_stages = {.cp = 4, .pp = 2};
  const StepOutcome packed = predict("megatron_packed", two_stages);
  EXPECT_EQ(packed.verdict, Verdict::kFits) << packed.reason;
  const StepOutcome dynamic = predict("megatron_dynamic", two_stages);
  EXPECT_EQ(dynamic.verdict, Verdict::kImpossible);
  EXPECT_THAT(dynamic.reason, HasSubstr("pipeline stages run one at a time"));
}

TEST_F(ScheduledSteps, ACapIsKept) {
  StepSetting setting{.sizes = {.cp = 8}, .strategy = {"megatron_dynamic", {{"cap", "45000"}}}};
  const StepOutcome wide = predict(setting);
  ASSERT_EQ(wide.verdict, Verdict::kOutOfMemory);
  setting.strategy.options["cap"] = "100";
  const StepOutcome narrow = predict(setting);
  EXPECT_EQ(narrow.verdict, Verdict::kImpossible);
  EXPECT_THAT(narrow.reason, HasSubstr("option cap"));
}

}  // namespace
}  // namespace contextile
