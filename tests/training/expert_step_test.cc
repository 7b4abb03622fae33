// Steps of models with experts: weights, memory, exchanges and gradients by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "contextile/advanced/step_planner.h"
#include "contextile/advanced/training.h"
#include "training/simple_step.h"

namespace contextile {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Four layers, the first of them without experts, the others with 8 of 6e6 weights each, of which a
// token visits 2.
constexpr std::int64_t kExpert = 3 * 2000 * 1000;
constexpr std::int64_t kDenseLayer = 34'004'000;
constexpr std::int64_t kExpertLayer = 10'000'000 + 4000 + 16'000;  // attention, norms, router
constexpr std::int64_t kEnds = 20'000'000 + 20'002'000;            // embedding, head
constexpr std::int64_t kCommon = kDenseLayer + 3 * kExpertLayer + kEnds;

TrainingStep expert_step(const ParallelSizes& sizes, const Cluster& cluster) {
  TrainingStep step = step_of(sizes, cluster, 1);
  step.model.experts = {.experts = 8, .per_token = 2, .ffn = 1000, .dense_layers = 1};
  step.options.gradient_overlap = GradientOverlap::kOff;
  return step;
}

StageTimes times_of(const TrainingStep& step) { return predict_step(step).stages.front(); }

TEST(Experts, CountWeightsAndFlopsByHand) {
  const ModelSpec model = expert_step({}, simple_cluster(1, 1)).model;
  const ModelWeights weights = weights_of(model);
  EXPECT_EQ(weights.layer, kDenseLayer);
  EXPECT_EQ(weights.expert_layer, kExpertLayer);
  EXPECT_EQ(weights.total(4), kCommon + 3 * 8 * kExpert);
  EXPECT_EQ(weights.active(4), kCommon + 3 * 2 * kExpert);
  const LinearFlops flops = linear_flops_of(model);
  EXPECT_DOUBLE_EQ(flops.after_attention_experts, 2 * (4e6 + 16e3 + 2 * kExpert));
  EXPECT_DOUBLE_EQ(flops.layer(), 2 * (6e6 + 0.25 * 28e6 + 0.75 * (4e6 + 16e3 + 2 * kExpert)));
  ModelSpec shared = model;
  shared.experts.shared_ffn = 500;
  EXPECT_EQ(weights_of(shared).expert_layer, kExpertLayer + 3 * 2000 * 500);
  ModelSpec tied = model;
  tied.tied_embeddings = true;
  EXPECT_EQ(weights_of(tied).total(4), weights.total(4) - 20'000'000);
  EXPECT_DOUBLE_EQ(linear_flops_of(tied).head, flops.head);
}

TEST(Experts, AreSpreadOverDevicesAndTheirStateOverThoseThatHoldTheSame) {
  TrainingStep step =
      expert_step({.tp = 1, .cp = 4, .dp = 2, .pp = 1, .ep = 4}, simple_cluster(1, 8));
  constexpr std::int64_t kExperts = 3 * 2 * kExpert;  // two in each of three layers
  const auto memory = [&](OptimizerShards optimizer) {
    step.options.optimizer = optimizer;
    return step_memory(step).front();
  };
  const StageMemory none = memory(OptimizerShards::kNone);
  EXPECT_EQ(none.weights_bytes, 2 * (kCommon + kExperts));
  EXPECT_EQ(none.gradients_bytes, 4 * (kCommon + kExperts));
  EXPECT_EQ(none.optimizer_bytes, 12 * (kCommon + kExperts));
  EXPECT_EQ(memory(OptimizerShards::kZero1).optimizer_bytes, 12 * (kCommon / 8 + kExperts / 2));
  // Two dense layers are whole, which are larger than two with experts.
  const StageMemory fsdp = memory(OptimizerShards::kFsdp);
  EXPECT_EQ(fsdp.weights_bytes, 2 * (kCommon / 8 + 2 * kDenseLayer + kExperts / 2));
  EXPECT_EQ(fsdp.optimizer_bytes, 12 * (kCommon / 8 + kExperts / 2));
  // With larger experts it is two of those layers; then no device can drop any of its experts.
  step.model.experts.ffn = 3000;
  EXPECT_EQ(memory(OptimizerShards::kFsdp).weights_bytes,
            2 * (kCommon / 8 + 2 * kExpertLayer + 3 * kExperts));
}

TEST(Experts, OfTensorParallelRanksAreWhole) {
  TrainingStep step =
      expert_step({.tp = 5, .cp = 2, .dp = 1, .pp = 1, .ep = 2}, simple_cluster(1, 10));
  step.options.optimizer = OptimizerShards::kNone;
  const StageMemory memory = step_memory(step).front();
  EXPECT_EQ(memory.weights_bytes, 2 * (kCommon / 5 + 3 * 4 * kExpert));
  step.options.optimizer = OptimizerShards::kZero1;  // five devices hold the same experts
  EXPECT_EQ(step_memory(step).front().optimizer_bytes, 12 * (kCommon / 10 + 3 * 4 * kExpert / 5));
}

TEST(Experts, KeepTheTokensThatAreSentToThem) {
  TrainingStep step =
      expert_step({.tp = 1, .cp = 2, .dp = 1, .pp = 1, .ep = 2}, simple_cluster(1, 2));
  const double attention = 2 * 2000 + 2 * 20 * 100 + 2 * 5 * 100;
  const auto bytes = [&](double per_dense, double per_expert) {
    return 1000 *
           static_cast<std::int64_t>(2 * (4 * attention + per_dense + 3 * per_expert) + 4 * 4 * 20);
  };
  // 1000 tokens; an expert layer has 2 x 1000 elements between its matrices, and 2 x 2000 inputs.
  EXPECT_EQ(step_memory(step).front().activations_bytes,
            bytes(2 * 2000 + 3 * 4000, 2 * 2000 + 3 * 2000 + 4000));
  step.options.recompute = Recompute::kSelective;
  EXPECT_EQ(step_memory(step).front().activations_bytes, bytes(2 * 4000, 2 * 2000 + 4000));
}

TEST(Experts, ExchangeTokensInBothDirections) {
  // 1000 tokens to two experts of hidden 2000 in bf16: 8 MB of a device, 3/4 of them to others.
  TrainingStep step =
      expert_step({.tp = 1, .cp = 4, .dp = 2, .pp = 1, .ep = 4}, simple_cluster(1, 8));
  constexpr double kTimes = 2 * 2 * 3;  // dispatch and combine, two directions, three layers
  EXPECT_NEAR(times_of(step).expert_parallel_us, kTimes * 6, 1e-6);
  EXPECT_EQ(times_of(step).recompute_us, 0);
  step.options.recompute = Recompute::kFull;
  EXPECT_NEAR(times_of(step).expert_parallel_us, kTimes * 6, 1e-6);
  step.options.recompute = Recompute::kNone;
  const double exposed_us = times_of(step).exposed_us();
  step.sizes.ep = 1;
  EXPECT_EQ(times_of(step).expert_parallel_us, 0);
  step.sizes.ep = 4;
  EXPECT_GT(exposed_us, kTimes * 6);
  step.cluster.intra_latency_us = 5;
  EXPECT_NEAR(times_of(step).expert_parallel_us, kTimes * (5 + 6), 1e-6);
  step.options.collective_share = 0.5;
  EXPECT_NEAR(times_of(step).expert_parallel_us, kTimes * (5 + 12), 1e-6);
  step.cluster.collectives = {
      {.op = Collective::kAllToAll, .devices = 4, .start_us = 10, .gbytes_per_s = 500}};
  EXPECT_NEAR(times_of(step).expert_parallel_us, kTimes * (10 + 16), 1e-6);
}

TEST(Experts, ExchangeTokensAcrossNodesAtTheRateOfTheirNics) {
  // Half of 8 MB leave the node at 100 GB/s per device.
  TrainingStep step =
      expert_step({.tp = 1, .cp = 4, .dp = 2, .pp = 1, .ep = 8}, simple_cluster(2, 4));
  EXPECT_NEAR(times_of(step).expert_parallel_us, 12 * 40, 1e-6);
  step.cluster.inter_latency_us = 5;
  EXPECT_NEAR(times_of(step).expert_parallel_us, 12 * 45, 1e-6);
  step.cluster.inter_gbytes_per_s_per_node = 1e6;  // the port inside the node is slower
  EXPECT_NEAR(times_of(step).expert_parallel_us, 12 * (5 + 4), 1e-6);
}

TEST(Experts, HaveTheirTimeInTheStep) {
  TrainingStep step =
      expert_step({.tp = 1, .cp = 2, .dp = 2, .pp = 2, .ep = 4}, simple_cluster(1, 8));
  const StepPrediction prediction = predict_step(step);
  for (const StageTimes& stage : prediction.stages) {
    EXPECT_NEAR(stage.total_us(), prediction.time_us, 1e-6);
    EXPECT_GT(stage.expert_parallel_us, 0);
  }
  // Stage 0 has the layer without experts. A device computes 5e8 FLOPs per us.
  const double attention = 3 * 1000 * 2 * 2 * 10e6 / 5e8;
  const double experts = 3 * 1000 * 2 * (16e3 + 2 * kExpert) / 5e8;
  const double dense = 3 * 1000 * 2 * 24e6 / 5e8;
  const double head = 3 * 1000 * 2 * 20e6 / 5e8;
  EXPECT_NEAR(prediction.stages[0].linear_us, attention + dense + experts, 1e-6);
  EXPECT_NEAR(prediction.stages[1].linear_us, attention + 2 * experts + head, 1e-6);
  EXPECT_NEAR(prediction.stages[1].expert_parallel_us, 2 * prediction.stages[0].expert_parallel_us,
              1e-6);
  const double tokens = static_cast<double>(prediction.tokens);
  EXPECT_NEAR(prediction.model_flops,
              3 * (tokens * 2 * (40e6 + 24e6 + 3 * (16e3 + 2 * kExpert) + 20e6) + 2 * 4 * 1e9), 1);
}

TEST(Experts, ReduceTheirGradientsOverTheDevicesThatHoldThem) {
  TrainingStep step =
      expert_step({.tp = 1, .cp = 4, .dp = 2, .pp = 1, .ep = 4}, simple_cluster(1, 8));
  step.options.optimizer = OptimizerShards::kNone;
  constexpr double kExperts = 3 * 2 * kExpert;
  const auto reduce_us = [](double weights, double ranks, double gbytes_per_s) {
    return 2 * 4 * weights * (ranks - 1) / ranks / (1e3 * gbytes_per_s);
  };
  EXPECT_NEAR(times_of(step).gradients_us,
              reduce_us(kCommon, 8, 1000) + reduce_us(kExperts, 2, 1000), 1e-6);
  EXPECT_NEAR(times_of(step).optimizer_us, 30 * (kCommon + kExperts) / 1e6, 1e-6);
  step.options.optimizer = OptimizerShards::kZero1;
  EXPECT_NEAR(times_of(step).optimizer_us, 30 * (kCommon / 8.0 + kExperts / 2) / 1e6, 1e-6);
  // On two nodes of four, each of four pairs of devices crosses the NICs with a quarter of them.
  step.options.optimizer = OptimizerShards::kNone;
  step.cluster = simple_cluster(2, 4);
  EXPECT_NEAR(times_of(step).gradients_us, reduce_us(kCommon, 8, 400) + reduce_us(kExperts, 2, 100),
              1e-6);
  step.sizes.ep = 8;  // no two devices hold the same experts
  EXPECT_NEAR(times_of(step).gradients_us, reduce_us(kCommon, 8, 400), 1e-6);
  step.sizes.ep = 2;  // rings of four devices on two nodes
  EXPECT_NEAR(times_of(step).gradients_us,
              reduce_us(kCommon, 8, 400) + reduce_us(2 * kExperts, 4, 200), 1e-6);
}

TEST(Experts, AreGatheredAndScatteredByFsdp) {
  TrainingStep step =
      expert_step({.tp = 1, .cp = 4, .dp = 2, .pp = 1, .ep = 4}, simple_cluster(1, 8));
  step.options.optimizer = OptimizerShards::kFsdp;
  // Weights forward and backward, gradients backward.
  const double bytes = 2 + 2 + 4;
  const double us = bytes * (kCommon * 7 / 8.0 + 3 * 2 * kExpert / 2.0) / 1e6;
  EXPECT_NEAR(times_of(step).gradients_us, us, 1e-6);
}

TEST(Experts, NeedTensorParallelCollectivesOnlyIfTheyAreShared) {
  TrainingStep step =
      expert_step({.tp = 5, .cp = 2, .dp = 1, .pp = 1, .ep = 2}, simple_cluster(1, 10));
  const double one_us = 4.0 / 5 * 1000 * 2000 * 2 / 1e6;
  const auto collectives = [&] { return times_of(step).tensor_parallel_us / one_us; };
  // Forward and backward, each with one for the head.
  EXPECT_NEAR(collectives(), 2 * (4 + 3 * 2 + 1), 1e-6);
  step.model.experts.shared_ffn = 500;
  EXPECT_NEAR(collectives(), 2 * (4 * 4 + 1), 1e-6);
}

TEST(TiedEmbeddings, AreOnTheFirstAndTheLastStage) {
  TrainingStep step = step_of({.tp = 1, .cp = 1, .dp = 1, .pp = 2}, simple_cluster(1, 2), 1);
  const std::vector<StageMemory> untied = step_memory(step);
  step.model.tied_embeddings = true;
  EXPECT_EQ(step_memory(step)[0].weights_bytes, untied[0].weights_bytes);
  EXPECT_EQ(step_memory(step)[1].weights_bytes, untied[1].weights_bytes);
  TrainingStep whole = step_of({}, simple_cluster(1, 1), 1);
  const std::int64_t bytes = step_memory(whole)[0].weights_bytes;
  whole.model.tied_embeddings = true;
  EXPECT_EQ(step_memory(whole)[0].weights_bytes, bytes - 2 * 20'000'000);
}

TEST(ExpertParallelSizes, AreRefusedWhereTheyDoNotDivide) {
  const TrainingStep step = expert_step({}, simple_cluster(3, 4));
  const auto problem = [&](const ModelSpec& model, const ParallelSizes& sizes) {
    return parallel_sizes_problem(model, step.cluster, sizes).value_or("none");
  };
  EXPECT_EQ(problem(step.model, {.cp = 12, .ep = 4}), "none");
  EXPECT_THAT(problem(simple_model(), {.cp = 12, .ep = 4}),
              HasSubstr("EP 4 of a model without experts"));
  EXPECT_THAT(problem(step.model, {.cp = 12, .ep = 3}),
              HasSubstr("EP 3 does not divide 8 experts"));
  EXPECT_THAT(problem(step.model, {.cp = 12, .ep = 8}),
              HasSubstr("EP 8 does not divide the 12 devices of a stage"));
  EXPECT_THAT(problem(step.model, {.cp = 12, .ep = 0}), HasSubstr("at least 1"));
  ModelSpec six = step.model;
  six.experts.experts = 6;
  EXPECT_THAT(problem(six, {.cp = 12, .ep = 6}), HasSubstr("cut nodes of 4 devices unevenly"));
}

TEST(ExpertParallelSizes, AreSweptForModelsWithExperts) {
  const Cluster cluster = simple_cluster(1, 8);
  const ModelSpec experts = expert_step({}, cluster).model;
  const auto eps = [&](const ModelSpec& model, const GivenSizes& given) {
    std::vector<std::int32_t> found;
    for (const ParallelSizes& sizes : all_sizes(given, model, cluster, 1, 1)) {
      EXPECT_EQ(sizes.num_devices(), 8);
      found.push_back(sizes.ep);
    }
    return found;
  };
  const GivenSizes one_group{.tp = 1, .cp = 8};
  EXPECT_THAT(eps(experts, one_group), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(eps(experts, {.tp = 1, .cp = 8, .ep = 4}), ElementsAre(4));
  EXPECT_THAT(eps(simple_model(), one_group), ElementsAre(1));
  EXPECT_EQ(complete_sizes({.ep = 4}, 8), (ParallelSizes{.cp = 8, .ep = 4}));
  EXPECT_EQ(sizes_text({.cp = 8, .ep = 4}), "TP 1, CP 8, DP 1, PP 1, EP 4");
  EXPECT_EQ(sizes_text({.cp = 8}), "TP 1, CP 8, DP 1, PP 1");
}

}  // namespace
}  // namespace contextile
