// The search of set-ups finds what a sweep over all of them finds, and its bounds are bounds.
#include "contextile/advanced/advise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "contextile/base.h"
#include "contextile/cluster.h"
#include "training/advise/candidates.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;

class Advise : public ::testing::Test {
 protected:
  Advise() {
    job_.model = {.name = "small",
                  .layers = 8,
                  .hidden = 2048,
                  .q_heads = 16,
                  .kv_heads = 4,
                  .head_dim = 128,
                  .ffn = 8192,
                  .vocabulary = 32000};
    job_.cluster = load_cluster("dgx-h100:2x4");
    // Mostly short documents and a few long ones.
    for (std::int64_t i = 0; i < 400; ++i) {
      job_.lengths.push_back(i % 25 == 0 ? 20000 + 611 * i % 12000 : 50 + 37 * i % 900);
    }
    job_.tokens = 32768;
    job_.step_tokens = 8 * job_.tokens;
    options_.seconds = 0;
  }

  AdviseJob job_;
  AdviseOptions options_;
};

TEST_F(Advise, FindsTheSetUpsOfASweepOverAll) {
  const Advice pruned = advise(job_, options_);
  options_.prune = false;
  const Advice all = advise(job_, options_);
  ASSERT_EQ(pruned.engines.size(), 5U);
  ASSERT_EQ(pruned.own.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(pruned.engines[i].setup, all.engines[i].setup) << i;
    EXPECT_DOUBLE_EQ(pruned.engines[i].tokens_per_s, all.engines[i].tokens_per_s) << i;
    EXPECT_EQ(pruned.own[i].setup, all.own[i].setup) << i;
  }
  EXPECT_GT(pruned.above_bound, all.predicted / 4);
  EXPECT_LT(pruned.predicted, all.predicted);
  for (const Advice* advice : {&pruned, &all}) {
    EXPECT_EQ(advice->considered, advice->predicted + advice->out_of_memory + advice->impossible +
                                      advice->unsupported + advice->above_bound + advice->left);
    EXPECT_EQ(advice->left, 0);
    EXPECT_EQ(advice->possible_gain, 1);
  }
}

TEST_F(Advise, SortsSetUpsThatFitByTheirSpeed) {
  const Advice advice = advise(job_, options_);
  for (const auto* list : {&advice.engines, &advice.own}) {
    double before = std::numeric_limits<double>::infinity();
    for (const AdvisedSetup& one : *list) {
      EXPECT_LE(one.tokens_per_s, before);
      before = one.tokens_per_s;
      EXPECT_LE(one.memory_bytes, job_.cluster.memory_bytes);
      EXPECT_GE(one.step_us, one.bound_us);
      EXPECT_EQ(one.setup.strategy.empty(), list == &advice.engines);
    }
  }
}

TEST_F(Advise, HasBoundsThatNoPredictionUndercuts) {
  const AdviseJob job = complete_job(job_);
  const DrawnSteps steps(job);
  std::set<std::string> seen;
  for (const bool own : {false, true}) {
    for (const SetupGroup& group : setup_groups(job, options_, own)) {
      StepPlanner planner(steps.step(0, group.setup.packing), [](const std::string&) {});
      for (const TrainingSetup& setup : group.exchanges) {
        const StepSetting setting = step_setting_of(setup, job.options);
        const StepOutcome bound = planner.bound(setting);
        const StepOutcome found = planner.predict(setting);
        if (found.verdict != Verdict::kFits) continue;
        ASSERT_EQ(bound.verdict, Verdict::kFits) << setup_text(setup);
        EXPECT_LE(bound.prediction->time_us, found.prediction->time_us * (1 + 1e-9))
            << setup_text(setup);
        seen.insert(setting.strategy.name);
      }
    }
  }
  EXPECT_EQ(seen, (std::set<std::string>{"zigzag", "ulysses", "all_gather", "hybrid",
                                         "megatron_dynamic", "magi", "distca", "fcp"}));
}

TEST_F(Advise, PacksTheSameDocumentsInEveryWay) {
  const DrawnSteps steps(complete_job(job_));
  const auto documents = [&](DocumentPacking packing) {
    std::multiset<std::int64_t> all;
    for (const BatchLengths& batch : steps.step(0, packing).micro_batches) {
      all.insert(batch.begin(), batch.end());
    }
    return all;
  };
  EXPECT_EQ(documents(DocumentPacking::kWlb), documents(DocumentPacking::kSequential));
  EXPECT_NE(steps.step(0, DocumentPacking::kWlb).micro_batches,
            steps.step(0, DocumentPacking::kSequential).micro_batches);
  EXPECT_EQ(steps.tokens(DocumentPacking::kSequential), job_.step_tokens);
}

TEST_F(Advise, TakesTheLeastRecomputeThatFits) {
  job_.cluster.memory_bytes = 32'000'000'000;
  const Advice advice = advise(job_, options_);
  ASSERT_FALSE(advice.engines.empty());
  for (const AdvisedSetup& one : advice.engines) {
    EXPECT_LE(one.memory_bytes, job_.cluster.memory_bytes);
    if (one.setup.recompute == Recompute::kNone) continue;
    TrainingSetup less = one.setup;
    less.recompute = static_cast<Recompute>(static_cast<int>(less.recompute) - 1);
    EXPECT_GT(predict_setup(job_, less).memory_bytes, job_.cluster.memory_bytes)
        << setup_text(one.setup);
  }
}

TEST_F(Advise, KeepsToWhatIsGiven) {
  options_.sizes.cp = 4;
  options_.exchanges = {CpExchange::kAllGather};
  options_.packings = {DocumentPacking::kSequential};
  options_.optimizers = {OptimizerShards::kZero1};
  options_.recomputes = {Recompute::kFull};
  options_.strategies = {"dcp"};
  const Advice advice = advise(job_, options_);
  ASSERT_FALSE(advice.engines.empty());
  for (const AdvisedSetup& one : advice.engines) {
    EXPECT_EQ(one.setup.sizes.cp, 4);
    EXPECT_EQ(one.setup.exchange, CpExchange::kAllGather);
    EXPECT_EQ(one.setup.packing, DocumentPacking::kSequential);
    EXPECT_EQ(one.setup.optimizer, OptimizerShards::kZero1);
    EXPECT_EQ(one.setup.recompute, Recompute::kFull);
  }
  ASSERT_FALSE(advice.own.empty());
  EXPECT_EQ(advice.own.front().setup.strategy, "dcp");
}

TEST_F(Advise, PredictsASetUpThatDoesNotFit) {
  job_.cluster.memory_bytes = 1'000'000'000;
  EXPECT_TRUE(advise(job_, options_).engines.empty());
  const AdvisedSetup now = predict_setup(job_, {.sizes = {.tp = 1, .cp = 8, .dp = 1, .pp = 1}});
  EXPECT_GT(now.memory_bytes, job_.cluster.memory_bytes);
  EXPECT_GT(now.tokens_per_s, 0);
  EXPECT_EQ(now.setup.tokens, job_.tokens);
}

TEST_F(Advise, StopsWhenTheTimeIsOverAndSaysWhatIsLeft) {
  options_.seconds = 1e-9;
  const Advice advice = advise(job_, options_);
  EXPECT_GT(advice.left, 0);
  EXPECT_GE(advice.possible_gain, 1);
  EXPECT_GT(advice.unbounded, 0);
  EXPECT_EQ(advice.engines.size(), 1U);
  EXPECT_TRUE(advice.own.empty());
  EXPECT_EQ(advice.considered, advice.predicted + advice.out_of_memory + advice.impossible +
                                   advice.unsupported + advice.above_bound + advice.left);
}

TEST_F(Advise, ReportsProgressWhileItBounds) {
  options_.seconds = 1e-9;
  std::int64_t calls_without_a_prediction = 0;
  options_.progress = [&](const AdviseProgress& at) {
    if (at.predicted == 0) ++calls_without_a_prediction;
    EXPECT_GT(at.left, 0);
  };
  static_cast<void>(advise(job_, options_));
  EXPECT_GT(calls_without_a_prediction, 0);
}

TEST(AdviseSteps, GoOnWithADocumentThatAMicroBatchCuts) {
  AdviseJob job;
  job.model = load_model("llama-3-8b");
  job.cluster = load_cluster("dgx-h100:1x8");
  job.lengths = {20000, 1};
  job.tokens = 8192;
  job.step_tokens = 4 * job.tokens;
  const DrawnSteps steps(complete_job(job));
  ASSERT_EQ(steps.size(), 2U);
  std::vector<std::int64_t> long_pieces;
  std::int64_t ones = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const BatchLengths& batch : steps.step(i, DocumentPacking::kSequential).micro_batches) {
      EXPECT_EQ(std::reduce(batch.begin(), batch.end()), job.tokens);
      for (const std::int64_t length : batch) {
        if (length == 1) ++ones;
        if (length > 1) long_pieces.push_back(length);
      }
    }
  }
  // 65536 tokens: three of the long document, and 5533 more of a fourth.
  EXPECT_EQ(std::reduce(long_pieces.begin(), long_pieces.end()) + ones, 65536);
  EXPECT_LE(ones, 4);
  EXPECT_GE(ones, 3);
  EXPECT_EQ(steps.cut(), 4);
}

TEST_F(Advise, SearchesEvenPipelinesForMegatron) {
  job_.model.layers = 6;
  TrainingSetup setup{.sizes = {.tp = 1, .cp = 2, .dp = 1, .pp = 4}};
  setup.tokens = job_.tokens;
  setup.optimizer = OptimizerShards::kFsdp;
  setup.step_tokens = job_.step_tokens;
  EXPECT_THAT(job_problem(setup, job_.model, TrainingEngine::kMegatron).value_or(""),
              HasSubstr("expected layers that PP 4 x 1 chunks divide, found 6"));
  EXPECT_EQ(job_problem(setup, job_.model, TrainingEngine::kTorchtitan), std::nullopt);
  setup.sizes = {.tp = 1, .cp = 4, .dp = 1, .pp = 2};
  EXPECT_EQ(job_problem(setup, job_.model, TrainingEngine::kMegatron), std::nullopt);
  options_.engine = TrainingEngine::kMegatron;
  options_.prune = false;
  options_.best = 1000;
  options_.strategies = {"magi"};
  options_.optimizers = {OptimizerShards::kZero1};
  options_.packings = {DocumentPacking::kSequential};
  options_.sizes.tp = 1;
  const Advice advice = advise(job_, options_);
  ASSERT_FALSE(advice.engines.empty());
  for (const auto* list : {&advice.engines, &advice.own}) {
    for (const AdvisedSetup& one : *list) {
      EXPECT_EQ(6 % (one.setup.sizes.pp * one.setup.chunks), 0) << setup_text(one.setup);
    }
  }
}

TEST_F(Advise, KnowsSequencesThatEnginesCannotCut) {
  TrainingSetup setup{.sizes = {.tp = 2, .cp = 3, .dp = 1, .pp = 1}};
  setup.tokens = setup.step_tokens = 8192;
  for (const CpExchange exchange : {CpExchange::kP2p, CpExchange::kAllGather}) {
    setup.exchange = exchange;
    EXPECT_THAT(job_problem(setup, job_.model, TrainingEngine::kMegatron).value_or(""),
                HasSubstr("expected a multiple of 12 tokens, found 8192"));
  }
  setup.optimizer = OptimizerShards::kFsdp;
  EXPECT_THAT(job_problem(setup, job_.model, TrainingEngine::kTorchtitan).value_or(""),
              HasSubstr("expected a multiple of 12 tokens"));
  setup.tokens = setup.step_tokens = 12 * 700;
  EXPECT_EQ(job_problem(setup, job_.model, TrainingEngine::kMegatron), std::nullopt);
}

TEST_F(Advise, KeepsTheMemoryOfTheFullestStep) {
  job_.step_tokens = 2 * job_.tokens;
  const TrainingSetup setup{.sizes = {.tp = 1, .cp = 4, .dp = 2, .pp = 1}};
  const AdvisedSetup one = predict_setup(job_, setup);
  const AdviseJob job = complete_job(job_);
  const DrawnSteps steps(job);
  ASSERT_GT(steps.size(), 1U);
  std::int64_t most = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    StepPlanner planner(steps.step(i, setup.packing), [](const std::string&) {});
    most = std::max(most, planner.predict(step_setting_of(setup, job.options)).memory_bytes());
  }
  EXPECT_EQ(one.memory_bytes, most);
}

TEST_F(Advise, RefusesOtherTokensThanThoseOfTheFlags) {
  job_.model = load_model("llama-3-8b");
  const ReadSetup read = read_megatron_arguments(
      "--context-parallel-size 8 --seq-length 8192 --micro-batch-size 1 --global-batch-size 8", 8);
  try {
    static_cast<void>(predict_read_setup(job_, read));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("expected 32768 tokens a micro-batch"));
    EXPECT_THAT(error.what(), HasSubstr("found 8192"));
  }
}

TEST_F(Advise, RefusesBadJobsByName) {
  const auto problem = [&](const AdviseJob& job, const AdviseOptions& options) -> std::string {
    try {
      static_cast<void>(advise(job, options));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  AdviseJob bad = job_;
  bad.lengths = {5, 0};
  EXPECT_THAT(problem(bad, options_), HasSubstr("expected lengths of at least 1 token, found 0"));
  bad.lengths.clear();
  EXPECT_THAT(problem(bad, options_), HasSubstr("expected lengths of documents, found none"));
  bad = job_;
  bad.step_tokens = 40000;
  EXPECT_THAT(problem(bad, options_),
              HasSubstr("a multiple of 32768 (one micro-batch), found 40000"));
  bad = job_;
  bad.tokens = 1;
  EXPECT_THAT(problem(bad, options_),
              HasSubstr("at most 65536 micro-batches a step, found 262144"));
  bad.tokens = bad.step_tokens = std::int64_t{1} << 40;
  EXPECT_THAT(problem(bad, options_), HasSubstr("a step of at most 4194304 documents"));
  AdviseOptions none = options_;
  none.sizes.tp = 3;
  EXPECT_THAT(problem(job_, none), HasSubstr("a product of 8 devices"));
  none = options_;
  none.best = 0;
  EXPECT_THAT(problem(job_, none), HasSubstr("at least one set-up to return, found 0"));
  none = options_;
  none.seconds = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(problem(job_, none), HasSubstr("seconds of at least 0, found nan"));
  none = options_;
  none.strategies = {"zigzga"};
  EXPECT_THAT(problem(job_, none), HasSubstr("zigzag"));
  EXPECT_THROW(static_cast<void>(predict_setup(job_, {.sizes = {.tp = 3}})), InvalidArgument);
}

TEST(AdviseDefaults, HoldTheLongestDocument) {
  EXPECT_EQ(default_tokens({1, 2}), 8192);
  EXPECT_EQ(default_tokens({131072}), 131072);
  EXPECT_EQ(default_tokens({131073}), 262144);
  EXPECT_EQ(default_step_tokens(131072), 4 << 20);
  EXPECT_EQ(default_step_tokens(std::int64_t{1} << 23), std::int64_t{1} << 23);
}

}  // namespace
}  // namespace contextile
