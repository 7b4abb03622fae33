// Plans of every strategy, executed end to end on random batches and compared with the oracle.

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "contextile/advanced/executor.h"
#include "contextile/advanced/oracle.h"
#include "contextile/extend/plan_build.h"
#include "contextile/planner.h"
#include "runtime/check/run_error.h"
#include "runtime/executor/plan_execution.h"
#include "support/message_of.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

// Replaces the generator's small heads by real head dims, every dtype, GQA and MQA, softcap and
// sink.
AttentionShape random_real_shape(Chance& chance, AttentionShape shape) {
  constexpr std::array<std::int32_t, 3> kDims = {32, 64, 128};
  constexpr std::array<Dtype, 4> kDtypes = {Dtype::kF32, Dtype::kF32, Dtype::kBf16, Dtype::kF16};
  if (chance.one_in(3)) {
    shape.q_heads = 4;
    shape.kv_heads = 1;
  }
  shape.head_dim = chance.pick(kDims);
  shape.value_dim = chance.one_in(4) ? 48 : shape.head_dim;
  shape.dtype = chance.pick(kDtypes);
  shape.softcap = chance.one_in(4) ? 2.5 : 0;
  shape.sink = chance.one_in(3);
  return shape;
}

struct Sample {
  RandomBatch batch;
  std::vector<NamedPlan> plans;
};

Sample random_sample(std::uint64_t seed) {
  Chance chance(seed);
  BatchLimits limits;
  limits.max_tokens = 70;
  limits.ranks = {1, 2, 3, 4, 8};
  limits.homes = true;
  Sample sample{random_batch_of(chance, limits), {}};
  sample.batch.workload.shape = random_real_shape(chance, sample.batch.workload.shape);
  sample.plans = plans_of_every_strategy(chance, sample.batch);
  return sample;
}

// Every thread acts as a process that drives one rank.
RunReport run_as_processes(const std::shared_ptr<const Plan>& plan, const RunOptions& shared) {
  RunReport whole;
  run_inproc(plan->num_devices(), [&](Transport& transport) {
    RunOptions options = shared;
    options.rank = &transport;
    RunReport report = run_plan(plan, options);
    if (transport.rank() == Rank{0}) {
      whole = std::move(report);
      return;
    }
    EXPECT_TRUE(report.ok());
    for (const MaskRun& mask : report.masks) {
      EXPECT_TRUE(mask.errors.empty());
      EXPECT_EQ(mask.result_bits, 0U);
    }
  });
  return whole;
}

TEST(RunPlan, RanksOfSeveralProcessesHaveTheBitsOfThreads) {
  std::set<std::string> executed;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Sample sample = random_sample(seed);
    for (NamedPlan& named : sample.plans) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + named.name + ": " + sample.batch.text);
      const auto plan = std::make_shared<const Plan>(std::move(named.plan));
      RunOptions options;
      options.seed = seed;
      const RunReport apart = run_as_processes(plan, options);
      const RunReport together = run_plan(plan, options);
      ASSERT_TRUE(apart.ok());
      ASSERT_EQ(apart.masks.size(), together.masks.size());
      EXPECT_EQ(apart.memory.staging_bytes, together.memory.staging_bytes);
      for (std::size_t m = 0; m < apart.masks.size(); ++m) {
        EXPECT_NE(together.masks[m].result_bits, 0U);
        EXPECT_EQ(apart.masks[m].result_bits, together.masks[m].result_bits);
        EXPECT_EQ(apart.masks[m].sent_bytes_forward, together.masks[m].sent_bytes_forward);
        EXPECT_FALSE(apart.masks[m].errors.empty());
      }
      executed.insert(plan->strategy);
    }
  }
  for (const Strategy* strategy : strategies()) {
    EXPECT_TRUE(executed.contains(std::string(strategy->name()))) << strategy->name();
  }
}

TEST(RunPlan, AGroupOfAnotherSizeIsRefusedOnEveryRank) {
  Sample sample = random_sample(1);
  const auto plan = std::make_shared<const Plan>(std::move(sample.plans.front().plan));
  run_inproc(plan->num_devices() + 1, [&](Transport& transport) {
    RunOptions options;
    options.rank = &transport;
    EXPECT_THROW(static_cast<void>(run_plan(plan, options)), InvalidArgument);
  });
}

TEST(RunPlan, OptionsThatDifferAreNamedOnEveryRank) {
  Sample sample = random_sample(2);
  NamedPlan& named = sample.plans.front();
  const auto plan = std::make_shared<const Plan>(std::move(named.plan));
  const std::int32_t last = plan->num_devices() - 1;
  ASSERT_GT(last, 0);
  const auto errors_with = [&](const std::function<void(RunOptions&)>& change) {
    std::set<std::string> errors;
    std::mutex mutex;
    run_inproc(plan->num_devices(), [&](Transport& transport) {
      RunOptions options;
      options.rank = &transport;
      if (transport.rank() == Rank{last}) change(options);
      const std::string error =
          message_of<InvalidArgument>([&] { return run_plan(plan, options); });
      const std::lock_guard lock(mutex);
      errors.insert(error);
    });
    return errors;
  };
  const auto error_of = [&](const std::string& name, const std::string& usual,
                            const std::string& odd) {
    return std::set<std::string>{
        fmt::format("run: expected the same {} on all ranks, found {} on rank 0 and {} on rank {}",
                    name, usual, odd, last)};
  };
  EXPECT_EQ(errors_with([](RunOptions& options) { options.repeats = 3; }),
            error_of("repeats", "1", "3"));
  EXPECT_EQ(errors_with([](RunOptions& options) { options.kernel = "reference"; }),
            error_of("kernel", "the preferred one", "reference"));
  EXPECT_EQ(errors_with([](RunOptions& options) { options.seed = 8; }), error_of("seed", "0", "8"));
}

TEST(RunPlan, EveryStrategyEqualsTheOracleOnRandomBatches) {
  std::set<std::string> executed;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Sample sample = random_sample(seed);
    for (NamedPlan& named : sample.plans) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + named.name + ": " + sample.batch.text);
      RunOptions options;
      options.seed = seed;
      const RunReport report =
          run_plan(std::make_shared<const Plan>(std::move(named.plan)), options);
      EXPECT_TRUE(report.ok()) << report_text(report);
      executed.insert(named.name);
    }
  }
  for (const Strategy* strategy : strategies()) {
    EXPECT_TRUE(executed.contains(std::string(strategy->name())))
        << strategy->name() << " was never executed";
  }
}

TEST(RunPlan, TimingAndOldContentsChangeNoBit) {
  for (std::uint64_t seed = 101; seed <= 110; ++seed) {
    Sample sample = random_sample(seed);
    for (NamedPlan& named : sample.plans) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + named.name + ": " + sample.batch.text);
      const auto plan = std::make_shared<const Plan>(std::move(named.plan));
      for (std::size_t mask = 0; mask < plan->rounds[0].masks.size(); ++mask) {
        ExecutionOptions options;
        options.poison = false;
        const OracleResult calm = execute(plan, mask, options);
        options.poison = true;
        options.transport.max_delay_us = 300;
        for (std::uint64_t delay_seed = 0; delay_seed < 2; ++delay_seed) {
          options.transport.delay_seed = delay_seed;
          EXPECT_EQ(first_difference(calm, execute(plan, mask, options)), "")
              << "delay seed " << delay_seed;
        }
      }
    }
  }
}

// Rows that attend one key have no dq and dk: the errors are measured by the terms that cancel.
TEST(RunPlan, BatchesWhoseGradientTermsAllCancelStayWithinTheBound) {
  const MaskUse use = parse_mask_use("sliding_window:1");
  const std::vector<std::int64_t> lengths = {1, 1, 40, 7, 1};
  const AttentionShape shape{
      .q_heads = 4, .kv_heads = 2, .head_dim = 128, .value_dim = 128, .dtype = Dtype::kF32};
  const Workload workload = make_workload(lengths, shape, {&use, 1});
  Cluster cluster;
  cluster.devices_per_node = 2;
  const Strategy& strategy = find_strategy("dcp");
  const auto plan = std::make_shared<const Plan>(
      build_plan(workload, cluster, strategy.arrange(workload, cluster, {})));
  for (const AttentionKernel* kernel : kernels()) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(std::string(kernel->name()) + ", seed " + std::to_string(seed));
      RunOptions options;
      options.kernel = kernel->name();
      options.seed = seed;
      const RunReport report = run_plan(plan, options);
      EXPECT_TRUE(report.ok()) << report_text(report);
    }
  }
}

std::shared_ptr<const Plan> example() { return std::make_shared<const Plan>(example_plan()); }

TEST(RunPlan, TheReportHoldsEveryArrayAndTheBytesOfTheExample) {
  const RunReport report = run_plan(example());
  ASSERT_EQ(report.masks.size(), 1);
  const MaskRun& run = report.masks[0];
  ASSERT_EQ(run.errors.size(), 5);
  EXPECT_EQ(run.errors[0].array, "out");
  EXPECT_EQ(run.errors[4].array, "dv");
  // q: 1 token x 2 heads x 4 x bf16; o: fp32 rows and LSE. do: bf16 rows, LSE, delta; dq: fp32.
  EXPECT_EQ(run.sent_bytes_forward, 2 * 4 * 2 + 2 * (4 * 4 + 4));
  EXPECT_EQ(run.sent_bytes_backward, 2 * (4 * 2 + 8) + 2 * 4 * 4);
  EXPECT_EQ(run.predicted_bytes_forward, run.sent_bytes_forward);
  EXPECT_TRUE(report.ok()) << report_text(report);
}

TEST(RunPlan, WithoutCompareNothingIsMeasuredAgainstTheOracle) {
  RunOptions options;
  options.compare = false;
  options.repeats = 3;
  const RunReport report = run_plan(example(), options);
  EXPECT_TRUE(report.masks[0].errors.empty());
  EXPECT_GT(report.masks[0].forward_s, 0);
  EXPECT_GT(report.masks[0].backward_s, 0);
  EXPECT_TRUE(report.ok());
}

TEST(RunPlan, AReferenceOfTheBatchJudgesEveryPlanOfItAlike) {
  Sample sample = random_sample(3);
  const Workload& workload = sample.batch.workload;
  RunOptions options;
  options.kernel = "reference";
  options.seed = 5;
  const RunReference reference = make_run_reference(workload, options, Passes::kForwardBackward);
  for (NamedPlan& named : sample.plans) {
    SCOPED_TRACE(named.name);
    const auto plan = std::make_shared<const Plan>(std::move(named.plan));
    const RunReport alone = run_plan(plan, options);
    const RunReport beside = run_plan(plan, options, reference);
    EXPECT_TRUE(beside.ok());
    ASSERT_EQ(beside.masks.size(), alone.masks.size());
    for (std::size_t m = 0; m < alone.masks.size(); ++m) {
      ASSERT_EQ(beside.masks[m].errors.size(), alone.masks[m].errors.size());
      for (std::size_t i = 0; i < alone.masks[m].errors.size(); ++i) {
        // Bands in another order are summed in another order.
        EXPECT_NEAR(beside.masks[m].errors[i].error, alone.masks[m].errors[i].error, 1e-6);
      }
    }
  }
}

TEST(RunPlan, RefusesAReferenceOfAnotherBatch) {
  Sample sample = random_sample(3);
  Workload other = sample.batch.workload;
  other.shape.softcap += 1;
  const RunReference reference = make_run_reference(other, {}, Passes::kForwardBackward);
  const auto plan = std::make_shared<const Plan>(std::move(sample.plans.front().plan));
  EXPECT_THROW(static_cast<void>(run_plan(plan, {}, reference)), InvalidArgument);
}

TEST(RunPlan, RefusesWhatItCannotRun) {
  RunOptions options;
  options.repeats = 0;
  EXPECT_THROW(static_cast<void>(run_plan(example(), options)), InvalidArgument);
  options = {};
  options.kernel = "none";
  EXPECT_THROW(static_cast<void>(run_plan(example(), options)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(run_plan(nullptr)), InvalidArgument);
  Plan broken = example_plan();
  broken.rounds[0].devices.pop_back();
  EXPECT_THROW(static_cast<void>(run_plan(std::make_shared<const Plan>(broken))), InvalidPlan);
}

TEST(RunReport, IsNotOkWhenAnErrorABoundOrAByteIsOff) {
  const RunReport good = run_plan(example());
  ASSERT_TRUE(good.ok());
  RunReport bad = good;
  bad.masks[0].errors[2].error = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(bad.ok());
  bad = good;
  bad.masks[0].errors[1].error = 2 * bad.masks[0].errors[1].bound;
  EXPECT_FALSE(bad.ok());
  bad = good;
  ++bad.masks[0].sent_bytes_backward;
  EXPECT_FALSE(bad.ok());
  bad = good;
  --bad.masks[0].predicted_bytes_forward;
  EXPECT_FALSE(bad.ok());
  bad = good;
  ++bad.memory.conversion_bytes;
  EXPECT_FALSE(bad.ok());
}

TEST(RelativeError, IsInfiniteWhereSomethingIsMissing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> truth = {1, -4, -inf};
  EXPECT_EQ(relative_error(std::vector<double>{1, -4, -inf}, truth, 0), 0);
  EXPECT_EQ(relative_error(std::vector<double>{1, -3, -inf}, truth, 0), 0.25);
  EXPECT_EQ(relative_error(std::vector<double>{1, -3, -inf}, truth, 8), 0.125);
  EXPECT_EQ(relative_error(std::vector<double>{nan, -4, -inf}, truth, 0), inf);
  EXPECT_EQ(relative_error(std::vector<double>{1, -4, 0}, truth, 0), inf);
  EXPECT_EQ(relative_error(std::vector<double>{1, -4, nan}, truth, 0), inf);
  EXPECT_EQ(relative_error(std::vector<double>{1, -4}, truth, 0), inf);
  EXPECT_EQ(relative_error(std::vector<double>{1e-9}, std::vector<double>{0}, 0), inf);
}

}  // namespace
}  // namespace contextile
