// Predictions held against measured times: the statistics by hand, and rows of small plans.
#include "contextile/advanced/validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "contextile/advanced/step_planner.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "report/held_rows.h"
#include "report/time_order.h"
#include "report/validation_tables.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(RatioSummary, HasTheMedianAndTheFurthestFactor) {
  const RatioSummary odd = summary_of({1.2, 0.5, 1.1});
  EXPECT_EQ(odd.rows, 3U);
  EXPECT_DOUBLE_EQ(odd.median, 1.1);
  EXPECT_DOUBLE_EQ(odd.furthest, 0.5);  // a factor of 2, which is more than 1.2
  const RatioSummary even = summary_of({0.9, 1.5, 1.0, 1.2});
  EXPECT_DOUBLE_EQ(even.median, 1.1);
  EXPECT_DOUBLE_EQ(even.furthest, 1.5);
  EXPECT_DOUBLE_EQ(summary_of({0.7}).median, 0.7);
  EXPECT_DOUBLE_EQ(summary_of({0.7}).furthest, 0.7);
  EXPECT_EQ(summary_of({}).rows, 0U);
  EXPECT_DOUBLE_EQ(factor_of(0.8), 1.25);
  EXPECT_DOUBLE_EQ(factor_of(1.25), 1.25);
}

TEST(KendallOrder, CountsPairsInOrderAndTurned) {
  // Measured 1 < 2 < 3; of the pairs, (2, 3) is predicted the other way round.
  const KendallOrder order =
      kendall_order(std::vector<double>{10, 30, 20}, std::vector<double>{1, 2, 3}, 0.02);
  EXPECT_EQ(order.pairs, 3);
  EXPECT_EQ(order.in_order, 2);
  EXPECT_EQ(order.turned, 1);
  EXPECT_DOUBLE_EQ(order.tau().value(), 1.0 / 3);
}

TEST(KendallOrder, DropsPairsThatAreMeasuredTied) {
  // 100 and 101.9 are tied, 100 and 102 are not; 101.9 and 102 are.
  const KendallOrder order =
      kendall_order(std::vector<double>{1, 2, 3}, std::vector<double>{100, 101.9, 102}, 0.02);
  EXPECT_EQ(order.pairs, 1);
  EXPECT_DOUBLE_EQ(order.tau().value(), 1);
  const KendallOrder none =
      kendall_order(std::vector<double>{1, 2}, std::vector<double>{5, 5}, 0.02);
  EXPECT_EQ(none.pairs, 0);
  EXPECT_FALSE(none.tau());
}

TEST(KendallOrder, PairsThatArePredictedTiedCountForNeither) {
  const KendallOrder order =
      kendall_order(std::vector<double>{7, 7, 9}, std::vector<double>{1, 2, 3}, 0.02);
  EXPECT_EQ(order.pairs, 3);
  EXPECT_EQ(order.in_order, 2);
  EXPECT_EQ(order.turned, 0);
  EXPECT_DOUBLE_EQ(order.tau().value(), 2.0 / 3);
}

constexpr const char* kHeader =
    "source,split,cluster,method,strategy,lengths,mask,q_heads,kv_heads,head_dim,dtype,"
    "direction,ms,note\n";

Validation validation_of(const std::string& rows, const ValidationOptions& options = {}) {
  return validate_rows(parse_measured_rows(kHeader + rows, "v.csv"), options);
}

// The simulation of the plan that a row describes.
Simulation simulated(const std::vector<std::int64_t>& lengths, const char* strategy,
                     const char* machine = "dgx-h100:1x2") {
  const Cluster cluster = load_cluster(machine);
  const Workload batch = make_workload(lengths, {.q_heads = 8, .kv_heads = 2});
  PlanOptions options;
  options.max_roundings = kAnyRoundings;
  return simulate(*plan_and_check(batch, cluster, {strategy}, options).plan, cluster);
}

TEST(Validation, PredictsWhatSimulateSaysOfEachDirection) {
  const Validation validation = validation_of(
      "me,judged,dgx-h100:1x2,a,zigzag,8K,causal,8,2,128,bf16,forward,2,\n"
      "me,judged,dgx-h100:1x2,a,zigzag,8K,causal,8,2,128,bf16,backward,2,\n"
      "me,judged,dgx-h100:1x2,a,zigzag,8K,causal,8,2,128,bf16,forward+backward,2,\n"
      "me,judged,dgx-h100:1x2,a,zigzag,8K|2*1K,causal,8,2,128,bf16,forward,2,\n");
  const Simulation one = simulated({8192}, "zigzag");
  const Simulation other = simulated({1024, 1024}, "zigzag");
  ASSERT_EQ(validation.rows.size(), 4U);
  const double forward_ms = 1e-3 * one.forward->time_us;
  EXPECT_DOUBLE_EQ(validation.rows[0].predicted_ms.value(), forward_ms);
  EXPECT_DOUBLE_EQ(validation.rows[0].ratio(), forward_ms / 2);
  EXPECT_DOUBLE_EQ(validation.rows[1].predicted_ms.value(), 1e-3 * one.backward->time_us);
  EXPECT_DOUBLE_EQ(validation.rows[2].predicted_ms.value(), 1e-3 * one.time_us());
  EXPECT_DOUBLE_EQ(validation.rows[3].predicted_ms.value(),
                   0.5 * (forward_ms + 1e-3 * other.forward->time_us))
      << "the mean over batches";
}

TEST(Validation, PredictsEachRowWithItsOwnKernelAndEngine) {
  const std::string header =
      "source,split,cluster,kernel,engine,method,strategy,lengths,mask,q_heads,kv_heads,head_dim,"
      "dtype,direction,ms\n";
  const auto row = [](const std::string& kernel, const std::string& engine) {
    return "me,judged,dgx-h100:1x2," + kernel + "," + engine +
           ",a,zigzag,8K,causal,8,2,128,bf16,forward,2\n";
  };
  const Validation validation = validate_rows(
      parse_measured_rows(header + row("", "") + row("fa2", "") + row("fa3", "ring"), "v.csv"), {});
  ASSERT_EQ(validation.rows.size(), 3U);
  std::size_t i = 0;
  for (const char* cluster :
       {"dgx-h100:1x2", "dgx-h100:1x2,kernel=fa2", "dgx-h100:1x2,kernel=fa3,engine=ring"}) {
    EXPECT_DOUBLE_EQ(validation.rows[i++].predicted_ms.value(),
                     1e-3 * simulated({8192}, "zigzag", cluster).forward->time_us)
        << cluster;
  }
}

constexpr const char* kStepHeader =
    "source,split,cluster,engine,method,strategy,lengths,mask,q_heads,kv_heads,head_dim,dtype,"
    "direction,wire,model,tp,dp,micro_batches,optimizer,gradient_overlap,recompute,linear_mfu,ms\n";

Validation validation_of_steps(const std::string& rows) {
  return validate_rows(parse_measured_rows(kStepHeader + rows, "v.csv"));
}

// The job that the rows below measured, with these micro-batches.
TrainingJob job_of(const std::vector<BatchLengths>& micro_batches) {
  TrainingJob job{.model = load_model("gpt-8b"),
                  .cluster = load_cluster("p4de:2x8,engine=te"),
                  .masks = {parse_mask_use("lambda:64,4096")},
                  .plan = {},
                  .options = {.recompute = Recompute::kFull,
                              .optimizer = OptimizerShards::kFsdp,
                              .gradient_overlap = GradientOverlap::kOff,
                              .linear_mfu = 0.4},
                  .micro_batches = micro_batches};
  job.plan.wire = Dtype::kBf16;
  job.plan.max_roundings = kAnyRoundings;
  return job;
}

TEST(Validation, PredictsWhatTheStepPlannerSaysOfASetting) {
  const auto row = [](const char* lengths, const char* strategy, const char* sizes) {
    return std::string("me,judged,p4de:2x8,te,a,") + strategy + "," + lengths +
           ",\"lambda:64,4096\",,,,,step,bf16,gpt-8b," + sizes + ",fsdp,off,full,0.4,1000\n";
  };
  const Validation validation = validation_of_steps(
      row("8K|2*4K", "hybrid:head_parallel=2", "4,,") + row("8K|2*4K|3*2K|4K", "zigzag", "4,2,2") +
      row("8K|2*4K|3*2K|4K|1K|1K|1K|1K", "zigzag", "4,2,2"));
  const BatchLengths one = {8192};
  const BatchLengths two = {4096, 4096};
  StepSetting setting{.sizes = {.tp = 4, .cp = 4, .dp = 1, .pp = 1},
                      .strategy = parse_strategies("hybrid:head_parallel=2").front()};
  const auto step_ms = [&](const TrainingJob& job) {
    const StepOutcome outcome = StepPlanner(job, [](const std::string&) {}).predict(setting);
    EXPECT_EQ(outcome.verdict, Verdict::kFits) << outcome.reason;
    return 1e-3 * outcome.prediction->time_us;
  };
  ASSERT_EQ(validation.rows.size(), 3U);
  EXPECT_DOUBLE_EQ(validation.rows[0].predicted_ms.value(),
                   0.5 * (step_ms(job_of({one})) + step_ms(job_of({two}))))
      << "each batch is a step of its own";
  setting = {.sizes = {.tp = 4, .cp = 2, .dp = 2, .pp = 1}, .strategy = {"zigzag", {}}};
  const double four_ms = step_ms(job_of({one, two, {2048, 2048, 2048}, {4096}}));
  EXPECT_DOUBLE_EQ(validation.rows[1].predicted_ms.value(), four_ms) << "four of them are a step";
  EXPECT_DOUBLE_EQ(validation.rows[2].predicted_ms.value(),
                   0.5 * (four_ms + step_ms(job_of({{1024}, {1024}, {1024}, {1024}}))));
  EXPECT_DOUBLE_EQ(validation.rows[1].ratio(), four_ms / 1000);
}

TEST(Validation, PredictsScheduledStepsAsOneSchedule) {
  const Validation validation = validation_of_steps(
      "me,judged,dgx-h200:1x8,,a,megatron_dynamic,64K|64*1K,causal,,,,,step,,gpt-8b,,2,1,,,full,,"
      "1000\n");
  TrainingJob job{.model = load_model("gpt-8b"),
                  .cluster = load_cluster("dgx-h200:1x8"),
                  .masks = {MaskUse{}},
                  .plan = {},
                  .options = {.recompute = Recompute::kFull},
                  .micro_batches = {{65536}, BatchLengths(64, 1024)}};
  job.plan.max_roundings = kAnyRoundings;
  const StepSetting setting{.sizes = {.tp = 1, .cp = 4, .dp = 2, .pp = 1},
                            .strategy = {"megatron_dynamic", {}}};
  const StepOutcome outcome = StepPlanner(job, [](const std::string&) {}).predict(setting);
  ASSERT_EQ(outcome.verdict, Verdict::kFits) << outcome.reason;
  EXPECT_DOUBLE_EQ(validation.rows[0].predicted_ms.value(), 1e-3 * outcome.prediction->time_us);
}

TEST(Validation, KeepsStepsApartFromAttention) {
  const std::string attention = ",zigzag,16K,causal,32,8,128,bf16,forward,,,,,,,,,,5\n";
  const std::string step = ",zigzag,16K,causal,,,,,step,,gpt-8b,4,,,,,,,1000\n";
  const std::string machine = "me,judged,dgx-h100:1x8,,";
  const Validation validation = validation_of_steps(
      machine + "a" + attention + machine + "a" + step + machine + "b" + attention + machine + "b" +
      ",ring,16K,causal,,,,,step,,gpt-8b,4,,,,off,,,900\n");
  ASSERT_EQ(validation.methods.size(), 4U);
  EXPECT_EQ(validation.methods[0].kind, RowKind::kAttention);
  EXPECT_EQ(validation.methods[1].kind, RowKind::kStep);
  EXPECT_DOUBLE_EQ(validation.methods[1].ratios.median, validation.rows[1].ratio());
  // The steps differ in more than the method, so only attention has an order.
  ASSERT_EQ(validation.experiments.size(), 1U);
  EXPECT_THAT(validation.experiments[0].batch, HasSubstr("forward"));
  const std::string text = validation_text(validation);
  EXPECT_THAT(text, AllOf(HasSubstr("me, judged: gpt-8b, TP 4, CP 2, DP 1, PP 1\n"),
                          HasSubstr("me, judged: gpt-8b, TP 4, CP 2, DP 1, PP 1, gradient overlap "
                                    "off\n"),
                          HasSubstr("me, a, steps "),
                          HasSubstr("a: dgx-h100:1x8, 16K causal, "
                                    "step")));
  const Json row = validation_json(validation)["rows"][1];
  EXPECT_EQ(row["model"], "gpt-8b");
  EXPECT_EQ(row["tp"], 4);
  EXPECT_EQ(row["cp"], 2);
  EXPECT_EQ(row["optimizer"], "zero1");
  EXPECT_EQ(row["gradient_overlap"], "on");
  EXPECT_EQ(row["linear_mfu"], 0.5);
  EXPECT_FALSE(validation_json(validation)["rows"][0].contains("model"));
}

TEST(Validation, SaysWhyAStepCannotBePredicted) {
  const Validation validation = validation_of_steps(
      "me,judged,dgx-h100:1x8,,a,zigzag,512K,causal,,,,,step,,gpt-8b,4,,,,,,,1000\n"
      "me,judged,dgx-h100:1x6,,a,ulysses,8K,causal,,,,,step,,gpt-8b,2,,,,,,,1000\n"
      "me,judged,dgx-h100:1x8,,a,,8K,causal,,,,,step,,gpt-8b,4,,,,,,,1000\n");
  EXPECT_THAT(validation.rows[0].reason, HasSubstr("out of memory on stage 0"));
  EXPECT_THAT(validation.rows[1].reason, HasSubstr("ulysses splits heads over 3 ranks"));
  EXPECT_EQ(validation.rows[2].reason, "no strategy here does the same");
  EXPECT_THAT(message_of([] {
                return validation_of_steps(
                    "me,judged,dgx-h100:1x8,,a,zigzag:stages=2,8K,causal,,,,,step,,gpt-8b,4,,,,,,,"
                    "1000\n");
              }),
              AllOf(HasSubstr("v.csv: line 2: "), HasSubstr("stages")));
}

TEST(Validation, SummarizesFittedAndJudgedRowsApart) {
  const Validation validation = validation_of(
      "me,judged,dgx-h100:1x2,a,zigzag,8K,causal,8,2,128,bf16,forward,1,\n"
      "me,fitted,dgx-h100:1x2,a,zigzag,8K,causal,8,2,128,bf16,forward,2,\n"
      "me,judged,dgx-h100:1x2,b,ring,8K,causal,8,2,128,bf16,forward,3,\n"
      "me,fitted,dgx-h100:1x2,b,ring,8K,causal,8,2,128,bf16,forward,4,\n"
      "me,judged,dgx-h100:1x2,a,zigzag,4K,causal,8,2,128,bf16,forward,5,\n");
  ASSERT_EQ(validation.methods.size(), 4U);
  EXPECT_EQ(validation.methods[0].split, RowSplit::kFitted);
  EXPECT_DOUBLE_EQ(validation.methods[0].ratios.median, validation.rows[1].ratio());
  EXPECT_EQ(validation.methods[2].split, RowSplit::kJudged);
  EXPECT_EQ(validation.methods[2].method, "a");
  EXPECT_EQ(validation.methods[2].ratios.rows, 2U);
  // The third setting has one method, so it orders nothing.
  ASSERT_EQ(validation.experiments.size(), 2U);
  for (const HeldExperiment& experiment : validation.experiments) {
    EXPECT_EQ(experiment.methods, 2U);
    EXPECT_EQ(experiment.order.pairs, 1);
  }
  EXPECT_NE(validation.experiments[0].split, validation.experiments[1].split);
}

TEST(Validation, TakesTheMeanOfAMethodThatWasMeasuredTwice) {
  // The means of a are 4 and of b 3: neither of a's times alone decides.
  const Validation validation = validation_of(
      "me,judged,dgx-h100:1x2,a,zigzag,8K,causal,8,2,128,bf16,forward,2,\n"
      "me,judged,dgx-h100:1x2,a,zigzag,8K,causal,8,2,128,bf16,forward,6,\n"
      "me,judged,dgx-h100:1x2,b,ring,8K,causal,8,2,128,bf16,forward,3,\n");
  ASSERT_EQ(validation.experiments.size(), 1U);
  EXPECT_EQ(validation.experiments[0].order.pairs, 1);
  // A ring is slower than a zigzag ring under a causal mask.
  EXPECT_EQ(validation.experiments[0].order.turned, 1);
}

TEST(Validation, KeepsExperimentsApartThatDifferInTheirDocuments) {
  // Both labels are shortened to "2 batches of 12288".
  const Validation validation = validation_of(
      "me,judged,dgx-h100:1x2,a,zigzag,2048+2048+2048+2048|16384,causal,8,2,128,bf16,forward,2,\n"
      "me,judged,dgx-h100:1x2,b,ring,4096+2048+1024+1024|16384,causal,8,2,128,bf16,forward,3,\n");
  EXPECT_TRUE(validation.experiments.empty());
}

TEST(Validation, ListsRowsThatCannotBePredictedWithTheReason) {
  const Validation validation = validation_of(
      "me,judged,dgx-h100:1x3,u,ulysses,8K,causal,8,2,128,bf16,forward,2,\n"
      "me,judged,dgx-h100:1x2,s,,8K,causal,8,2,128,bf16,forward,2,stripes\n"
      "me,judged,dgx-h100:1x2,z,zigzag,8K,causal,8,2,128,bf16,forward,2,\n");
  EXPECT_THAT(validation.rows[0].reason, HasSubstr("ulysses splits heads over 3 ranks"));
  EXPECT_EQ(validation.rows[1].reason, "no strategy here does the same: stripes");
  EXPECT_EQ(validation.rows[2].reason, "");
  EXPECT_EQ(validation.methods[0].unpredicted, 1U);
  EXPECT_EQ(validation.methods[0].ratios.rows, 0U);
  const std::string text = validation_text(validation);
  EXPECT_THAT(text, AllOf(HasSubstr("2 rows not predicted"), HasSubstr("line 3: me, s: "),
                          HasSubstr("stripes"), HasSubstr("me, judged: 8/2 heads of 128, bf16")));
}

TEST(Validation, PredictsOnAnotherMachineOfTheSameSize) {
  Cluster cluster = load_cluster("dgx-h100:1x2");
  cluster.attention_tflops /= 2;
  const std::string rows =
      "me,judged,dgx-h100:1x2,z,zigzag,64K,causal,8,2,128,bf16,forward,2,\n"
      "me,judged,dgx-h100:2x2,z,zigzag,64K,causal,8,2,128,bf16,forward,2,\n";
  const Validation own = validation_of(rows);
  const Validation other = validation_of(rows, {.cluster = cluster});
  EXPECT_GT(other.rows[0].predicted_ms.value(), 1.5 * own.rows[0].predicted_ms.value());
  EXPECT_EQ(other.rows[1].reason, "measured on 2 x 2 devices, the given cluster has 1 x 2");
}

TEST(Validation, RefusesOptionsAndMasksThatDoNotFitWithTheirLine) {
  EXPECT_THAT(message_of([] {
                return validation_of(
                    "me,judged,dgx-h100:1x2,z,zigzag:stages=2,8K,causal,8,2,128,bf16,forward,2,\n");
              }),
              AllOf(HasSubstr("v.csv: line 2: "), HasSubstr("stages")));
  EXPECT_THAT(message_of([] {
                return validation_of(
                    "me,judged,dgx-h100:1x2,z,zigzag,8K,\"tree:[4,4],[-1,0]\",8,2,128,bf16,"
                    "forward,2,\n");
              }),
              HasSubstr("v.csv: line 2: "));
}

TEST(Validation, TextIsNarrow) {
  const Validation validation = validation_of(
      "magi_dist,judged,dgx-h100:1x2,magi_attn-native,magi:hierarchical=on,8K,causal,8,2,128,"
      "bf16,forward+backward,2,\n"
      "magi_dist,judged,dgx-h100:1x2,ring_p2p,zigzag,8K,causal,8,2,128,bf16,forward+backward,3,\n");
  const std::string text = validation_text(validation);
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    EXPECT_LE(end - begin, 80U) << text.substr(begin, end - begin);
    begin = end + 1;
  }
  EXPECT_THAT(text, AllOf(HasSubstr("tau"), Not(HasSubstr("not predicted\n"))));
}

}  // namespace
}  // namespace contextile
