// Collectives of weights and gradients during the layers of a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "contextile/advanced/training.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/planner.h"
#include "support/message_of.h"
#include "training/simple_step.h"

namespace contextile {
namespace {

using testing::HasSubstr;

// The weights of all four layers, embedding and head; on two devices a collective of b bytes takes
// half of b at 1000 GB/s.
constexpr double kAllWeights = 4 * 34'004'000 + 40'002'000;
double layer_us(double bytes) { return 0.5 * bytes * kAllWeights / 4 / 1000e3; }

// Linear layers of one layer and direction take 136 us and 272 us, attention 50 and 100.
TrainingStep step_of_two(OptimizerShards optimizer) {
  TrainingStep step = step_of({.tp = 1, .cp = 2, .dp = 1, .pp = 1}, simple_cluster(1, 2), 1);
  step.options.optimizer = optimizer;
  return step;
}

MicroBatchAttention& attention_of(TrainingStep& step) {
  return step.replicas[0][0].parts[0].attention;
}

double exposed_us_of(const TrainingStep& step) {
  return predict_step(step).stages.front().gradients_us;
}

TEST(AttentionTimes, DelaysLieBetweenTheLoadsAndThenGrowWithTheCollective) {
  AttentionTimes times{.time_us = 100, .shared_us = SharedTimesOfLoads{10, 40, 130}};
  EXPECT_DOUBLE_EQ(times.later_us(0), 0);
  EXPECT_DOUBLE_EQ(times.later_us(25), 5);
  EXPECT_DOUBLE_EQ(times.later_us(50), 10);
  EXPECT_DOUBLE_EQ(times.later_us(75), 25);
  EXPECT_DOUBLE_EQ(times.later_us(200), 130);
  EXPECT_DOUBLE_EQ(times.later_us(300), 230);
  AttentionTimes both = times;
  both += {.time_us = 50, .compute_us = 7, .shared_us = SharedTimesOfLoads{0, 0, 20}};
  EXPECT_DOUBLE_EQ(both.time_us, 150);
  EXPECT_DOUBLE_EQ(both.compute_us, 7);
  EXPECT_DOUBLE_EQ(both.later_us(300), 150);
  // Without them a collective waits until attention is over.
  both += {.time_us = 1};
  EXPECT_DOUBLE_EQ(both.later_us(17), 17);
  EXPECT_DOUBLE_EQ(AttentionTimes{}.later_us(17), 17);
}

TEST(Gradients, HideUnderAttentionAsFarAsLinksAreFree) {
  TrainingStep step = step_of_two(OptimizerShards::kNone);
  const double reduce_us = 2 * layer_us(4);  // scatter and gather
  ASSERT_NEAR(reduce_us, 176.01, 0.01);
  attention_of(step).backward.time_us = 100;
  EXPECT_NEAR(exposed_us_of(step), reduce_us, 1e-6);  // 272 us of linear layers hide three layers'
  step.options.collective_share = 0.5;
  EXPECT_NEAR(exposed_us_of(step), 3 * (2 * reduce_us - 272) + 2 * reduce_us, 1e-6);
  attention_of(step).backward.shared_us = {0, 60, 160};
  // The rest of a layer, 80 us, lies between half of attention's time and all of it.
  const double delay_us = 60 * (2 * reduce_us - 272 - 50) / 50;
  EXPECT_NEAR(exposed_us_of(step), 3 * delay_us + 2 * reduce_us, 1e-6);
  // Full recompute runs forward first: 136 us and the work of its attention, 40 us.
  step.options.recompute = Recompute::kFull;
  EXPECT_NEAR(exposed_us_of(step), 2 * reduce_us, 1e-6);
}

TEST(Gradients, OfTheSlowestReplicaDecideHowMuchIsHidden) {
  TrainingStep step = step_of({.tp = 1, .cp = 1, .dp = 2, .pp = 1}, simple_cluster(1, 2), 1);
  step.options.optimizer = OptimizerShards::kNone;
  step.options.collective_share = 0.25;
  const double before_us = exposed_us_of(step);
  step.replicas[1][0].parts[0].device_tokens = 500;  // is done sooner, and waits
  EXPECT_NEAR(exposed_us_of(step), before_us, 1e-6);
  step.replicas[1][0].parts[0].device_tokens = 2000;
  EXPECT_NEAR(exposed_us_of(step), before_us - 3 * 272, 1e-6);
}

TEST(Fsdp, GathersAndScattersInEveryPhase) {
  TrainingStep step = step_of_two(OptimizerShards::kFsdp);
  step.options.gradient_overlap = GradientOverlap::kOff;
  EXPECT_NEAR(exposed_us_of(step), 4 * (2 * layer_us(2) + layer_us(4)), 1e-6);
  const double time_us = predict_step(step).time_us;
  // During the layers the first gather and the last scatter are alone, 136 us hide the rest of
  // forward, 272 us that of backward.
  step.options.gradient_overlap = GradientOverlap::kOn;
  const double slow = 5;
  step.options.collective_share = 1 / slow;
  const double forward_us = slow * layer_us(2);
  const double backward_us = slow * (layer_us(2) + layer_us(4));
  ASSERT_GT(backward_us, 272);
  const double exposed_us =
      forward_us + 3 * (forward_us - 136) + 3 * (backward_us - 272) + slow * layer_us(4);
  EXPECT_NEAR(exposed_us_of(step), exposed_us, 1e-6);
  EXPECT_NEAR(predict_step(step).time_us - time_us,
              exposed_us - 4 * (2 * layer_us(2) + layer_us(4)), 1e-6);
  // The second micro-batch hides the last scatter of the first one.
  TrainingStep two = step_of(step.sizes, step.cluster, 2);
  two.options = step.options;
  EXPECT_NEAR(exposed_us_of(two), 2 * exposed_us - slow * layer_us(4), 1e-6);
  // A lone rank has all of its weights.
  TrainingStep alone = step_of({}, simple_cluster(1, 1), 1);
  alone.options = step.options;
  EXPECT_EQ(exposed_us_of(alone), 0);
}

TEST(Fsdp, HoldsItsShareAndTheLayersThatAreWhole) {
  TrainingStep step = step_of({.tp = 1, .cp = 4, .dp = 2, .pp = 1}, simple_cluster(1, 8), 1);
  step.options.optimizer = OptimizerShards::kFsdp;
  const StageMemory memory = step_memory(step).front();
  EXPECT_EQ(memory.weights_bytes, 2 * (176'018'000 / 8 + 2 * 34'004'000));
  EXPECT_EQ(memory.gradients_bytes, 4 * (176'018'000 / 8 + 34'004'000));
  EXPECT_EQ(memory.optimizer_bytes, 12LL * 176'018'000 / 8);
  step.options.optimizer = OptimizerShards::kZero1;
  const StageMemory zero1 = step_memory(step).front();
  EXPECT_EQ(zero1.weights_bytes, 2 * 176'018'000);
  EXPECT_EQ(zero1.optimizer_bytes, memory.optimizer_bytes);
}

TEST(GradientTraffic, IsThatOfTheRingOfRanksWithTheSameWeights) {
  const Cluster cluster = simple_cluster(4, 8);  // 800 GB/s per node, 1000 inside
  const auto traffic = [&](const ParallelSizes& sizes, double share = 1) {
    return gradient_traffic(cluster, sizes, {.collective_share = share});
  };
  EXPECT_EQ(traffic({.tp = 2, .cp = 4, .dp = 4, .pp = 1}), (CollectiveTraffic{400, 400}));
  EXPECT_EQ(traffic({.tp = 2, .cp = 4, .dp = 4, .pp = 1}, 0.5), (CollectiveTraffic{200, 200}));
  EXPECT_EQ(traffic({.tp = 1, .cp = 8, .dp = 1, .pp = 4}), (CollectiveTraffic{1000, 0}));
  EXPECT_FALSE(traffic({.tp = 8, .cp = 1, .dp = 1, .pp = 4}).any());
  EXPECT_FALSE(
      gradient_traffic(cluster, {.tp = 1, .cp = 32}, {.gradient_overlap = GradientOverlap::kOff})
          .any());
}

TEST(BatchPart, KnowsHowACollectiveDelaysAttention) {
  const Cluster cluster = load_cluster("p4de:2x4");
  const std::vector<std::int64_t> lengths = {16384};
  const Workload workload = make_workload(lengths, {.q_heads = 32, .kv_heads = 8});
  const auto part_of_plan = [&](const char* strategy) {
    const Plan plan =
        build_plan(workload, cluster, find_strategy(strategy).arrange(workload, cluster, {}));
    return batch_part_of(plan, cluster, 1, AttentionDetail::kTimes, {40, 40});
  };
  for (const char* strategy : {"ulysses", "zigzag"}) {
    const MicroBatchAttention attention = part_of_plan(strategy).attention;
    for (const AttentionTimes& times : {attention.forward, attention.backward}) {
      ASSERT_TRUE(times.shared_us);
      for (std::size_t i = 0; i < kSharedLoads.size(); ++i) {
        // At best compute and transfers hide all of it; at worst it runs when attention is over.
        const double alone_us = kSharedLoads[i] * times.time_us;
        EXPECT_GE((*times.shared_us)[i], std::max(0.0, alone_us - times.time_us) - 1e-6);
        EXPECT_LE((*times.shared_us)[i], alone_us + 1e-6);
      }
    }
  }
  // The ring's links between nodes are never idle, so that both last as long as together.
  const AttentionTimes ring = part_of_plan("zigzag").attention.forward;
  EXPECT_GT((*ring.shared_us)[1], 0.1 * ring.time_us);
  const Plan plan =
      build_plan(workload, cluster, find_strategy("zigzag").arrange(workload, cluster, {}));
  EXPECT_FALSE(batch_part_of(plan, cluster, 1).attention.forward.shared_us);
}

TEST(OptimizerShards, HaveTheNamesOfTheProgramsOption) {
  for (const OptimizerShards shards :
       {OptimizerShards::kNone, OptimizerShards::kZero1, OptimizerShards::kFsdp}) {
    EXPECT_EQ(parse_optimizer_shards(to_string(shards)), shards);
  }
  EXPECT_THAT(message_of([] { static_cast<void>(parse_optimizer_shards("zero3")); }),
              HasSubstr("expected one of replicated, zero1, fsdp, found 'zero3'"));
}

TEST(GradientOverlap, HasTheNamesOfTheProgramsOption) {
  for (const GradientOverlap overlap : {GradientOverlap::kOff, GradientOverlap::kOn}) {
    EXPECT_EQ(parse_gradient_overlap(to_string(overlap)), overlap);
  }
  EXPECT_THAT(message_of([] { static_cast<void>(parse_gradient_overlap("yes")); }),
              HasSubstr("gradient overlap: expected one of off, on, found 'yes'"));
}

}  // namespace
}  // namespace contextile
