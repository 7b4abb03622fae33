// Training steps on clusters whose collectives were measured.
#include <gtest/gtest.h>

#include <algorithm>

#include "contextile/advanced/training.h"
#include "contextile/cluster.h"
#include "training/simple_step.h"

namespace contextile {
namespace {

using enum Collective;

// The weights of all four layers, embedding and head.
constexpr double kWeights = 4 * 34'004'000 + 40'002'000;

double gradients_us(const TrainingStep& step) {
  return predict_step(step).stages.front().gradients_us;
}

TEST(MeasuredCollectives, OfTensorParallelismGatherAndScatter) {
  TrainingStep step = step_of({.tp = 5, .cp = 1, .dp = 1, .pp = 1}, simple_cluster(1, 5), 2);
  step.cluster.collectives = {{kAllGather, 5, 0, 10, 2, 1000}, {kReduceScatter, 5, 0, 20, 0, 500}};
  // 4 MB: 1 us per MB at 1000 GB/s, 2 at 500.
  const double gather_us = 10 + 2 * 2 + 4;
  const double scatter_us = 20 + 4 * 2;
  // Two of each per layer and direction. The head gathers forward and scatters backward.
  const double micro_batch_us = 4 * 2 * (2 * gather_us + 2 * scatter_us) + gather_us + scatter_us;
  const auto tensor_parallel_us = [&] {
    return predict_step(step).stages.front().tensor_parallel_us;
  };
  EXPECT_NEAR(tensor_parallel_us(), 2 * micro_batch_us, 1e-6);
  step.options.collective_share = 0.1;  // of the links, which do not count
  EXPECT_NEAR(tensor_parallel_us(), 2 * micro_batch_us, 1e-6);
  step.options.tensor_parallel_overlap = 0.75;
  EXPECT_NEAR(tensor_parallel_us(), 0.25 * 2 * micro_batch_us, 1e-6);
  // Without a cost of its own, a scatter is a ring: 4/5 of 4 MB at a tenth of 1000 GB/s.
  step.options.tensor_parallel_overlap = 0;
  step.cluster.collectives.pop_back();
  EXPECT_NEAR(tensor_parallel_us(), 2 * (2 * 4 * 2 + 1) * (gather_us + 32), 1e-6);
}

TEST(MeasuredCollectives, OfGradientsInsideANode) {
  TrainingStep step = step_of({.tp = 1, .cp = 2, .dp = 2, .pp = 1}, simple_cluster(1, 4), 1);
  step.options.gradient_overlap = GradientOverlap::kOff;
  step.cluster.collectives = {{kAllGather, 4, 0, 10, 0, 200},
                              {kReduceScatter, 4, 0, 30, 0, 100},
                              {kReduceScatter, 0, 2, 0, 0, 1}};  // not on this node
  const double scatter_us = 30 + 4 * kWeights / 100e3;
  EXPECT_NEAR(gradients_us(step), scatter_us + 10 + 2 * kWeights / 200e3, 1e-6);
  // An all-reduce of the fp32 gradients is both, unless it has a cost of its own.
  step.options.optimizer = OptimizerShards::kNone;
  EXPECT_NEAR(gradients_us(step), scatter_us + 10 + 4 * kWeights / 200e3, 1e-6);
  step.cluster.collectives.push_back({kAllReduce, 4, 0, 50, 0, 80});
  const double reduce_us = 50 + 4 * kWeights / 80e3;
  EXPECT_NEAR(gradients_us(step), reduce_us, 1e-6);
  // During the layers there is one for each. The backward of linear layers hides all except the
  // last.
  step.options.gradient_overlap = GradientOverlap::kOn;
  const double layer_us = 50 + kWeights / 80e3;
  EXPECT_NEAR(gradients_us(step), 3 * std::max(0.0, layer_us - 2 * 136) + layer_us, 1e-6);
}

TEST(MeasuredCollectives, OfGradientsBetweenNodesShareTheirNics) {
  TrainingStep step = step_of({.tp = 1, .cp = 2, .dp = 4, .pp = 1}, simple_cluster(2, 4), 1);
  step.options.gradient_overlap = GradientOverlap::kOff;
  step.options.optimizer = OptimizerShards::kNone;
  step.cluster.collectives = {{kAllReduce, 0, 2, 100, 0, 50}, {kAllReduce, 8, 0, 0, 0, 1e6}};
  EXPECT_NEAR(gradients_us(step), 100 + 4 * kWeights / 50e3, 1e-6);
  // Five groups, one for each TP rank, have a fifth of the weights each.
  step.sizes = {.tp = 5, .cp = 2, .dp = 1, .pp = 1};
  TrainingStep tensor = step_of(step.sizes, simple_cluster(2, 5), 1);
  tensor.options = step.options;
  tensor.cluster.collectives = step.cluster.collectives;
  EXPECT_NEAR(gradients_us(tensor), 100 + 4 * kWeights / 50e3, 1e-3);
}

TEST(MeasuredCollectives, ThatAStepDoesNotHaveChangeNothing) {
  for (const OptimizerShards optimizer : {OptimizerShards::kNone, OptimizerShards::kZero1}) {
    TrainingStep step = step_of({.tp = 5, .cp = 2, .dp = 2, .pp = 1}, simple_cluster(4, 5), 2);
    step.cluster.intra_latency_us = 7;
    step.cluster.inter_latency_us = 12;
    step.options.optimizer = optimizer;
    const StepPrediction rings = predict_step(step);
    step.cluster.collectives = {{kAllToAll, 5, 0, 1, 1, 1},
                                {kAllToAll, 0, 4, 1, 1, 1},
                                {kAllGather, 0, 2, 1, 1, 1}};  // on fewer nodes
    const StepPrediction same = predict_step(step);
    EXPECT_EQ(same.time_us, rings.time_us);
    EXPECT_EQ(same.stages.front().tensor_parallel_us, rings.stages.front().tensor_parallel_us);
    EXPECT_EQ(same.stages.front().gradients_us, rings.stages.front().gradients_us);
  }
}

}  // namespace
}  // namespace contextile
