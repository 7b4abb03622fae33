// Training steps: sums by hand, monotonicity, memory, parallel sizes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contextile/advanced/training.h"
#include "contextile/base.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "support/message_of.h"
#include "training/simple_step.h"

namespace contextile {
namespace {

using testing::HasSubstr;

// --------------------------------------------------------------------------- parallel sizes

TEST(ParallelSizes, SaysWhyItIsImpossible) {
  const Cluster cluster = simple_cluster(4, 8);
  const auto problem = [&](const ParallelSizes& sizes, std::int32_t chunks = 1) {
    return parallel_sizes_problem(simple_model(), cluster, sizes, chunks).value_or("");
  };
  EXPECT_EQ(problem({.tp = 1, .cp = 8, .dp = 4, .pp = 1}), "");
  EXPECT_THAT(problem({.tp = 1, .cp = 8, .dp = 2, .pp = 1}), HasSubstr("are 16 devices"));
  EXPECT_THAT(problem({.tp = 16, .cp = 2, .dp = 1, .pp = 1}), HasSubstr("does not divide the 8"));
  EXPECT_THAT(problem({.tp = 4, .cp = 8, .dp = 1, .pp = 1}), HasSubstr("5 KV heads"));
  EXPECT_THAT(problem({.tp = 1, .cp = 4, .dp = 1, .pp = 8}), HasSubstr("4 layers are fewer"));
  EXPECT_THAT(problem({.tp = 1, .cp = 8, .dp = 1, .pp = 4}, 2), HasSubstr("2 chunks"));
  EXPECT_THAT(problem({.tp = 0, .cp = 8, .dp = 1, .pp = 4}), HasSubstr("at least 1"));
  const Cluster uneven = simple_cluster(3, 8);
  EXPECT_THAT(parallel_sizes_problem(simple_model(), uneven, {.tp = 1, .cp = 12, .dp = 2, .pp = 1})
                  .value_or(""),
              HasSubstr("groups of 12 ranks cut nodes of 8 ranks"));
  EXPECT_THAT(parallel_sizes_problem(simple_model(), uneven, {.tp = 1, .cp = 4, .dp = 3, .pp = 2})
                  .value_or(""),
              HasSubstr("stages of 12 ranks cut nodes"));
}

TEST(ParallelSizes, GroupsTakeTheirShareOfNodesAndNics) {
  Cluster cluster = simple_cluster(4, 8);
  cluster.nics_per_node = 8;
  const auto shape = [](const Cluster& c) {
    return fmt::format("{}x{} {} GB/s {} NICs", c.nodes, c.devices_per_node,
                       c.inter_gbytes_per_s_per_node, c.nics_per_node);
  };
  // TP 2 leaves 4 ranks per node, each node with half of its uplink.
  EXPECT_EQ(shape(context_parallel_cluster(cluster, {.tp = 2, .cp = 8, .dp = 1, .pp = 2})),
            "2x4 400 GB/s 4 NICs");
  EXPECT_EQ(shape(context_parallel_cluster(cluster, {.tp = 2, .cp = 2, .dp = 8, .pp = 1})),
            "1x2 400 GB/s 2 NICs");
  // All stages of a replica: stages of two nodes each, …
  EXPECT_EQ(shape(pooled_cluster(cluster, {.tp = 2, .cp = 8, .dp = 1, .pp = 2})),
            "4x4 400 GB/s 4 NICs");
  // … of two replicas on every node, …
  EXPECT_EQ(shape(pooled_cluster(cluster, {.tp = 2, .cp = 2, .dp = 2, .pp = 4})),
            "4x2 200 GB/s 2 NICs");
  // … and several stages of two replicas on a node.
  EXPECT_EQ(shape(pooled_cluster(cluster, {.tp = 1, .cp = 2, .dp = 2, .pp = 8})),
            "4x4 400 GB/s 4 NICs");
}

// -------------------------------------------------------------------------------- times

TEST(TrainingStep, OneDeviceTakesTheSumOfItsParts) {
  TrainingStep step = step_of({}, simple_cluster(1, 1), 3);
  const StepPrediction found = predict_step(step);
  // 1000 tokens x 2 x 34e6 FLOPs per layer at 500 TFLOP/s: 136 us; head 80 us; backward twice that.
  const double linear_us = 3 * 3 * (4 * 136 + 80);
  const double attention_us = 3 * 4 * (50 + 100);
  const double weights = 4 * 34'004'000 + 40'002'000;
  const double optimizer_us = weights * 30 / 1e6;
  ASSERT_EQ(found.stages.size(), 1U);
  const StageTimes& stage = found.stages.front();
  EXPECT_NEAR(stage.linear_us, linear_us, 1e-6);
  EXPECT_NEAR(stage.attention_us, 3 * 4 * (40 + 90), 1e-6);
  EXPECT_NEAR(stage.exposed_attention_us, 3 * 4 * (10 + 10), 1e-6);
  EXPECT_NEAR(stage.optimizer_us, optimizer_us, 1e-6);
  EXPECT_NEAR(stage.bubble_us, 0, 1e-6);
  EXPECT_EQ(stage.gradients_us, 0);
  EXPECT_EQ(stage.tensor_parallel_us, 0);
  EXPECT_NEAR(found.time_us, linear_us + attention_us + optimizer_us, 1e-6);
  EXPECT_EQ(found.tokens, 3000);
  EXPECT_NEAR(found.model_flops, 3 * (3000 * (4 * 68e6 + 40e6) + 3 * 4 * 1e9), 1);
  EXPECT_NEAR(found.mfu, found.model_flops / (1e9 * found.time_us), 1e-12);
  EXPECT_NEAR(found.tokens_per_s(), 3000 / found.time_us * 1e6, 1e-6);
}

TEST(TrainingStep, PartsOfEveryStageAddUpToTheStep) {
  for (const GradientOverlap overlap : {GradientOverlap::kOff, GradientOverlap::kOn}) {
    for (const OptimizerShards shards :
         {OptimizerShards::kNone, OptimizerShards::kZero1, OptimizerShards::kFsdp}) {
      TrainingStep step = step_of({.tp = 1, .cp = 2, .dp = 2, .pp = 4}, simple_cluster(2, 8), 5);
      step.replicas[1][2].parts[0].attention.backward.time_us = 900;
      step.options.gradient_overlap = overlap;
      step.options.optimizer = shards;
      const StepPrediction found = predict_step(step);
      for (const StageTimes& stage : found.stages) {
        EXPECT_NEAR(stage.total_us(), found.time_us, 1e-6);
        EXPECT_GE(stage.bubble_us, -1e-6);
        EXPECT_GT(stage.gradients_us, 0);
      }
      EXPECT_GT(found.replica_imbalance, 0);
    }
  }
}

TEST(TrainingStep, EqualMicroBatchesOfAPipelineTakeTheClosedForm) {
  TrainingStep step = step_of({.tp = 1, .cp = 1, .dp = 1, .pp = 4}, simple_cluster(4, 1), 6);
  step.cluster.inter_gbytes_per_s_per_node = step.cluster.intra_gbytes_per_s = 1e12;
  step.model.vocabulary = 1;  // all stages alike
  const StepPrediction found = predict_step(step);
  const double stage_us = 3 * 136 + 150;  // one layer
  EXPECT_NEAR(found.timelines.front().time_us, (6 + 3) * stage_us, 1);
  EXPECT_NEAR(found.timelines.front().bubble_share(), 3.0 / 9.0, 1e-3);
}

TEST(TrainingStep, StagesPayForTransfersOfActivationsAndGradients) {
  TrainingStep step = step_of({.tp = 1, .cp = 1, .dp = 1, .pp = 2}, simple_cluster(2, 1), 1);
  const double us = 1000 * 2000 * 2 / 100e3;  // 4 MB at 100 GB/s, there and back
  const double slow_us = predict_step(step).timelines.front().time_us;
  step.cluster.inter_gbytes_per_s_per_node = step.cluster.intra_gbytes_per_s = 1e12;
  const double free_us = predict_step(step).timelines.front().time_us;
  EXPECT_NEAR(slow_us - free_us, 2 * us, 1e-3);
  step.cluster.flow_gbytes_per_s = {{.nodes = 2, .gbytes_per_s = 50}};
  EXPECT_NEAR(predict_step(step).timelines.front().time_us - free_us, 2 * 2 * us, 1e-3);
}

TEST(TrainingStep, TensorParallelismDividesWorkAndAddsCollectives) {
  TrainingStep step = step_of({.tp = 5, .cp = 1, .dp = 1, .pp = 1}, simple_cluster(1, 5), 2);
  step.options.collective_share = 1;
  const StageTimes stage = predict_step(step).stages.front();
  EXPECT_NEAR(stage.linear_us, 2 * 3 * (4 * 136 + 80) / 5.0, 1e-6);
  // 4 collectives per layer and one of the head, each 4/5 of 4 MB at 1000 GB/s, both directions.
  EXPECT_NEAR(stage.tensor_parallel_us, 2 * 2 * (4 * 4 + 1) * 3.2, 1e-6);
  step.options.tensor_parallel_overlap = 0.75;
  EXPECT_NEAR(predict_step(step).stages.front().tensor_parallel_us, 0.25 * stage.tensor_parallel_us,
              1e-6);
}

TEST(TrainingStep, GradientsTravelInARingOverAllRanksWithTheSameWeights) {
  TrainingStep step = step_of({.tp = 1, .cp = 2, .dp = 4, .pp = 1}, simple_cluster(2, 4), 1);
  step.options.collective_share = 1;
  step.options.gradient_overlap = GradientOverlap::kOff;
  const double weights = 4 * 34'004'000 + 40'002'000;
  // 7/8 of the bytes at the 400 GB/s of a node's uplink.
  const auto ring_us = [](double bytes) { return 7.0 / 8 * bytes / 400e3; };
  EXPECT_NEAR(predict_step(step).stages.front().gradients_us,
              ring_us(4 * weights) + ring_us(2 * weights), 1e-6);
  step.options.optimizer = OptimizerShards::kNone;
  EXPECT_NEAR(predict_step(step).stages.front().gradients_us, 2 * ring_us(4 * weights), 1e-6);
}

TEST(TrainingStep, TheSlowestReplicaDecides) {
  TrainingStep step = step_of({.tp = 1, .cp = 1, .dp = 2, .pp = 1}, simple_cluster(1, 2), 2);
  const double before_us = predict_step(step).time_us;
  step.replicas[1][0].parts[0].attention.forward.time_us += 10;
  const StepPrediction after = predict_step(step);
  EXPECT_NEAR(after.time_us - before_us, 4 * 10, 1e-6);
  // The other replica waits: half of it on average over the two.
  EXPECT_NEAR(after.stages.front().bubble_us, 4 * 10 / 2.0, 1e-6);
}

TEST(TrainingStep, RecomputingAllRunsForwardAgainInBackward) {
  TrainingStep step = step_of({}, simple_cluster(1, 1), 2);
  const StepPrediction before = predict_step(step);
  step.options.recompute = Recompute::kFull;
  const StepPrediction after = predict_step(step);
  EXPECT_NEAR(after.stages.front().recompute_us, 2 * 4 * (136 + 50), 1e-6);
  EXPECT_NEAR(after.time_us, before.time_us + after.stages.front().recompute_us, 1e-6);
  EXPECT_EQ(after.model_flops, before.model_flops);
  step.options.recompute = Recompute::kSelective;
  // Two norms of 2 x 2000 elements and an activation of 3 x 4000, 2 bytes each at 1000 GB/s.
  EXPECT_NEAR(predict_step(step).stages.front().recompute_us, 2 * 4 * 1000 * 20000 * 2 / 1e6, 1e-6);
}

// ---------------------------------------------------------------------------- ping-pong

// One part with attention in pieces.
BatchPart piecewise(double compute_us, double input_us, double output_us) {
  BatchPart part = part_of(500, 1, 0, 0);
  part.attention.forward = {compute_us + input_us + output_us, compute_us, input_us, output_us};
  part.attention.backward = part.attention.forward;
  return part;
}

TEST(PingPong, HidesTransfersOfOneHalfUnderComputeOfTheOther) {
  TrainingStep step = step_of({}, simple_cluster(1, 1), 1);
  step.model.vocabulary = 1;
  step.replicas[0][0].parts = {piecewise(100, 10, 10), piecewise(100, 10, 10)};
  const StageTimes hidden = predict_step(step).stages.front();
  // L0, L1 of a layer are 68 us forward: all but the last results of the last layer are hidden.
  EXPECT_NEAR(hidden.attention_us, 2 * 4 * 200, 1e-6);
  EXPECT_EQ(hidden.exposed_attention_us, 0);
  // Transfers longer than all the work that runs with them are exposed.
  step.replicas[0][0].parts = {piecewise(100, 10, 10), piecewise(100, 500, 10)};
  EXPECT_NEAR(predict_step(step).stages.front().exposed_attention_us, 2 * 4 * 400, 1e-6);
}

TEST(PingPong, TicksAddUpByHand) {
  TrainingStep step = step_of({}, simple_cluster(1, 1), 1);
  step.model.layers = 2;
  step.model.vocabulary = 1;
  step.replicas[0][0].parts = {piecewise(30, 20, 40), piecewise(50, 35, 90)};
  const StepPrediction found = predict_step(step);
  // Forward: before attention 500 x 12e6 / 500e6 = 12 us, after it 56 us.
  // Layer 0: max(12, 0) + max(12, 20) + max(30, 35) + max(50, 40); layer 1: max(68, 90) +
  // max(68, 20) + 35 + 50; then max(56, 90) + 56.
  const double forward_us = (12 + 20 + 35 + 50) + (90 + 68 + 35 + 50) + 90 + 56;
  // Backward: 112 us come first, 24 last.
  const double backward_us = (112 + 112 + 35 + 50) + (136 + 136 + 35 + 50) + 90 + 24;
  EXPECT_NEAR(found.timelines.front().time_us, forward_us + backward_us, 0.1);
}

// --------------------------------------------------------------------------- same phase

TEST(SamePhase, ATickLastsAsLongAsItsSlowestStageAndTheSharedAttention) {
  TrainingStep step = step_of({.tp = 1, .cp = 1, .dp = 1, .pp = 2}, simple_cluster(1, 2), 2);
  step.model.layers = 2;
  step.model.vocabulary = 1;
  step.cluster.intra_gbytes_per_s = 1e12;
  step.pipeline.schedule = PipelineSchedule::kSamePhase;
  step.replicas[0][1].parts[0].device_tokens = 2000;  // twice as slow outside attention
  std::vector<double> forward_us = {10, 20, 30};
  step.ticks.resize(1);
  for (const double us : forward_us) {
    MicroBatchAttention attention;
    attention.forward = {us, us, 0, 0};
    attention.backward = {2 * us, 2 * us, 0, 0};
    step.ticks[0].push_back({attention});
  }
  // Forward ticks: (0,-), (1,0), (-,1); backward ticks: (-,0), (0,1), (1,-). Linear 136 or 272.
  const double expected =
      (136 + 10) + (272 + 20) + (2 * 136 + 20) + (272 + 30) + (2 * 272 + 40) + (2 * 272 + 60);
  EXPECT_NEAR(predict_step(step).timelines.front().time_us, expected, 0.1);
  step.ticks[0].pop_back();
  EXPECT_THAT(message_of([&] { static_cast<void>(predict_step(step)); }),
              HasSubstr("expected 3 ticks, found 2"));
}

TEST(SamePhase, ChunksTakeTheAttentionOfTheirTicks) {
  TrainingStep step = step_of({.tp = 1, .cp = 1, .dp = 1, .pp = 2}, simple_cluster(1, 2), 2);
  step.model.layers = 4;
  step.model.vocabulary = 1;
  step.cluster.intra_gbytes_per_s = 1e12;
  step.pipeline.schedule = PipelineSchedule::kSamePhase;
  step.pipeline.chunks = 2;
  step.ticks.resize(1);
  double attention_us = 0;
  for (const double us : {10.0, 20.0, 40.0, 80.0, 160.0}) {
    MicroBatchAttention attention;
    attention.forward = {us, us, 0, 0};
    attention.backward = {2 * us, 2 * us, 0, 0};
    step.ticks[0].push_back({attention});
    attention_us += 3 * us;
  }
  // Two micro-batches of two chunks, and one tick until the last stage begins.
  EXPECT_NEAR(predict_step(step).timelines.front().time_us, 5 * (136 + 272) + attention_us, 0.1);
  step.ticks[0].pop_back();
  EXPECT_THAT(message_of([&] { static_cast<void>(predict_step(step)); }),
              HasSubstr("expected 5 ticks, found 4"));
}

// ------------------------------------------------------------------------------- memory

TEST(Memory, OfLlama8BAddsUpByHand) {
  TrainingStep step;
  step.model = load_model("llama-3-8b");
  step.cluster = load_cluster("dgx-h200:4x8");
  step.sizes = {.tp = 2, .cp = 4, .dp = 2, .pp = 2};
  step.pipeline.stages = 2;
  step.pipeline.micro_batches = 4;
  MicroBatchWork work = even_micro_batch(65536, 4);
  work.parts[0].attention.staging_bytes = 123;
  work.parts[0].attention.retained_bytes = 1000;
  step.replicas.assign(2, std::vector<MicroBatchWork>(4, work));
  const std::vector<StageMemory> memory = step_memory(step);
  ASSERT_EQ(memory.size(), 2U);
  // 16 layers of 218,112,000 weights and the embedding (on the last stage: head and norm), TP 2.
  const std::int64_t layer = 4096 * (4096 + 2048 + 4096 + 3 * 14336) + 2 * 4096;
  const std::int64_t first = (16 * layer + 128256LL * 4096) / 2;
  EXPECT_EQ(layer, 218'112'000);
  EXPECT_EQ(memory[0].weights_bytes, 2 * first);
  EXPECT_EQ(memory[0].gradients_bytes, 4 * first);
  EXPECT_EQ(memory[0].optimizer_bytes, (12 * first + 7) / 8);
  EXPECT_EQ(memory[1].weights_bytes, 2 * (first + 4096 / 2));
  // A token and layer: 2 bytes of 4 x 4096 + 2 x 4096 + 2048 + 3 x 14336 elements, 32 LSE.
  const std::int64_t token = 2 * (6 * 4096 + 2048 + 3 * 14336) + 4 * 32;
  const std::int64_t micro_batch = 16 * (16384 * token / 2 + 1000);
  EXPECT_EQ(memory[0].in_flight, 2);
  EXPECT_EQ(memory[0].activations_bytes, 2 * micro_batch);
  EXPECT_EQ(memory[1].in_flight, 1);
  EXPECT_EQ(memory[1].activations_bytes, micro_batch);
  EXPECT_EQ(memory[0].working_bytes, 0);
  EXPECT_EQ(memory[1].working_bytes, 16384LL * 128256 * 6 / 2);
  EXPECT_EQ(memory[0].attention_bytes, 123);
  EXPECT_EQ(memory[0].reserve_bytes, 4'000'000'000);
  EXPECT_EQ(memory[0].total_bytes(),
            2 * first + 4 * first + (12 * first + 7) / 8 + 2 * micro_batch + 123 + 4'000'000'000);

  step.options.recompute = Recompute::kFull;
  step.options.optimizer = OptimizerShards::kNone;
  const StageMemory full = step_memory(step).front();
  EXPECT_EQ(full.activations_bytes, 2LL * 16 * 16384 * 4096);
  EXPECT_EQ(full.working_bytes, 16384 * token / 2 + 1000);
  EXPECT_EQ(full.optimizer_bytes, 12 * first);
  step.options.recompute = Recompute::kSelective;
  EXPECT_EQ(step_memory(step).front().activations_bytes,
            2 * micro_batch - 2LL * 16 * 16384 * (2 * (2 * 4096 + 14336)) / 2);
}

TEST(Memory, FollowsTheLargestMicroBatchesInFlight) {
  TrainingStep step = step_of({.tp = 1, .cp = 1, .dp = 1, .pp = 2}, simple_cluster(1, 2), 4);
  const std::int64_t per_thousand = step_memory(step)[1].activations_bytes;
  for (const auto& [i, tokens] : {std::pair(1, 3000), std::pair(2, 5000)}) {
    step.replicas[0][static_cast<std::size_t>(i)].parts[0].device_tokens = tokens;
  }
  const std::vector<StageMemory> memory = step_memory(step);
  EXPECT_EQ(memory[0].activations_bytes, 8 * per_thousand);
  EXPECT_EQ(memory[1].activations_bytes, 5 * per_thousand);
}

TEST(Memory, VerdictNamesTheStageAndWhatFillsIt) {
  TrainingStep step = step_of({.tp = 1, .cp = 1, .dp = 1, .pp = 2}, simple_cluster(1, 2), 2);
  EXPECT_EQ(out_of_memory(step.cluster, step_memory(step)), std::nullopt);
  step.replicas[0][0].parts[0].device_tokens = 4'000'000;
  const std::string verdict = out_of_memory(step.cluster, step_memory(step)).value_or("");
  EXPECT_THAT(verdict, HasSubstr("out of memory on stage 1"));
  EXPECT_THAT(verdict, HasSubstr("expected at most 80.0 GB"));
  EXPECT_THAT(verdict, HasSubstr("of them activations"));
  EXPECT_EQ(fullest_stage(step_memory(step)), 1U);
  EXPECT_EQ(largest_part(step_memory(step)[1]).name, "activations");
  step.cluster.memory_bytes = 0;
  EXPECT_EQ(out_of_memory(step.cluster, step_memory(step)), std::nullopt);
}

TEST(Memory, FallsWithRecomputeShardsAndParallelSizes) {
  const auto total = [](const ParallelSizes& sizes, Recompute recompute, OptimizerShards shards) {
    TrainingStep step = step_of(sizes, simple_cluster(1, 8), 4);
    step.cluster.devices_per_node = static_cast<std::int32_t>(sizes.num_devices());
    for (auto& replica : step.replicas) {
      replica.assign(4, even_micro_batch(64000, sizes.cp));
    }
    step.options.recompute = recompute;
    step.options.optimizer = shards;
    return step_memory(step).front().total_bytes();
  };
  const auto none = Recompute::kNone;
  const auto zero1 = OptimizerShards::kZero1;
  const ParallelSizes base{.tp = 1, .cp = 2, .dp = 2, .pp = 1};
  const std::int64_t bytes = total(base, none, zero1);
  EXPECT_LT(total(base, Recompute::kSelective, zero1), bytes);
  EXPECT_LT(total(base, Recompute::kFull, zero1), total(base, Recompute::kSelective, zero1));
  EXPECT_GT(total(base, none, OptimizerShards::kNone), bytes);
  EXPECT_LT(total(base, none, OptimizerShards::kFsdp), bytes);
  EXPECT_LT(total({.tp = 5, .cp = 2, .dp = 2, .pp = 1}, none, zero1), bytes);
  EXPECT_LT(total({.tp = 1, .cp = 4, .dp = 2, .pp = 1}, none, zero1), bytes);
  EXPECT_LT(total({.tp = 1, .cp = 2, .dp = 4, .pp = 1}, none, zero1), bytes);
}

// ------------------------------------------------------------------------ real attention

TEST(BatchPart, TakesTimesTokensAndBytesFromThePlan) {
  Cluster cluster = load_cluster("dgx-h200:2x2");
  AttentionShape shape;
  shape.q_heads = 8;
  shape.kv_heads = 2;
  const std::vector<std::int64_t> lengths = {5000, 300, 2701};
  const std::vector<MaskUse> masks = {parse_mask_use("wide=causal@3"),
                                      parse_mask_use("near=sliding_window:64@1")};
  const Workload workload = make_workload(lengths, shape, masks);
  const Plan plan =
      build_plan(workload, cluster, find_strategy("magi").arrange(workload, cluster, {}));
  const BatchPart part = batch_part_of(plan, cluster, 2, AttentionDetail::kSeparately);
  const Simulation simulation = simulate(plan, cluster);
  const PlanStats stats = statistics(plan);
  EXPECT_EQ(part.tokens, 8001);
  std::int64_t most = 0;
  for (std::int32_t r = 0; r < 4; ++r) most = std::max(most, plan.rounds[0].owned_tokens(Rank{r}));
  EXPECT_EQ(part.device_tokens, most);
  const std::vector<SimulatedProgram>& programs = simulation.forward->programs;
  EXPECT_NEAR(part.attention.forward.time_us,
              0.75 * programs[0].time_us + 0.25 * programs[1].time_us, 1e-9);
  EXPECT_LE(part.attention.forward.compute_us, part.attention.forward.time_us);
  EXPECT_GT(part.attention.forward.compute_us, 0);
  EXPECT_NEAR(part.attention_flops,
              0.75 * forward_flops(workload.masks[0].mask.num_pairs(), 16, shape) +
                  0.25 * forward_flops(workload.masks[1].mask.num_pairs(), 16, shape),
              1);
  EXPECT_EQ(part.attention.staging_bytes,
            std::max(stats.forward->peak_memory_bytes, stats.backward->peak_memory_bytes));
  // Forward fetches keys and values alone; backward also returns their gradients.
  EXPECT_GT(part.attention.forward.input_us, 0);
  EXPECT_EQ(part.attention.forward.output_us, 0);
  EXPECT_GT(part.attention.backward.output_us, 0);
  EXPECT_EQ(batch_part_of(plan, cluster, 2).attention.forward.input_us, 0);
}

TEST(BatchPart, HasTheStashOfTheOriginalsRing) {
  const Cluster cluster = load_cluster("dgx-h200:2x4");
  const AttentionShape shape{.q_heads = 32, .kv_heads = 8};
  const std::vector<std::int64_t> lengths = {65536};
  const Workload workload = make_workload(lengths, shape);
  const auto staging_bytes = [&](const char* stashed) {
    StrategyRequest request;
    request.options["count_stashed"] = stashed;
    const Plan plan =
        build_plan(workload, cluster, find_strategy("zigzag").arrange(workload, cluster, request));
    return batch_part_of(plan, cluster, 1).attention.staging_bytes;
  };
  // 8 outputs of 8192 queries, 32 heads: more than backward's buffers.
  EXPECT_GE(staging_bytes("on"), 8LL * 8192 * 32 * (128 * 2 + 4));
  EXPECT_LT(staging_bytes("off"), 8LL * 8192 * 32 * (128 * 2 + 4));
}

TEST(BatchPart, ExposesNothingWhereTheBusiestDeviceNeverWaits) {
  Cluster cluster = load_cluster("dgx-h200:1x8");
  cluster.intra_gbytes_per_s = 1e9;
  cluster.intra_latency_us = 0;
  const std::vector<MaskUse> masks = {parse_mask_use("wide=causal@3"),
                                      parse_mask_use("other=causal@4")};
  for (std::int64_t length = 1000; length < 3000; length += 77) {
    const std::vector<std::int64_t> lengths = {length};
    const Workload workload = make_workload(lengths, {}, masks);
    // The last device has the most work, and all it needs comes while it computes.
    const Plan plan =
        build_plan(workload, cluster, find_strategy("ring").arrange(workload, cluster, {}));
    const AttentionTimes forward = batch_part_of(plan, cluster, 1).attention.forward;
    EXPECT_GT(forward.time_us, 0);
    EXPECT_EQ(forward.compute_us, forward.time_us);
  }
}

TEST(TrainingStep, RefusesWhatDoesNotFitTogether) {
  const Cluster cluster = simple_cluster(1, 4);
  const auto broken = [&](auto change) {
    TrainingStep step = step_of({.tp = 1, .cp = 2, .dp = 1, .pp = 2}, cluster, 2);
    change(step);
    return message_of([&] { static_cast<void>(predict_step(step)); });
  };
  EXPECT_EQ(broken([](TrainingStep&) {}), "no error");
  EXPECT_THAT(broken([](TrainingStep& s) { s.sizes.dp = 2; }), HasSubstr("are 8 devices"));
  EXPECT_THAT(broken([](TrainingStep& s) { s.pipeline.stages = 4; }), HasSubstr("2 stages (PP)"));
  EXPECT_THAT(broken([](TrainingStep& s) { s.replicas.emplace_back(); }),
              HasSubstr("1 replicas (DP), found 2"));
  EXPECT_THAT(broken([](TrainingStep& s) { s.replicas[0].pop_back(); }),
              HasSubstr("expected 2 micro-batches"));
  EXPECT_THAT(broken([](TrainingStep& s) { s.replicas[0][1].parts.clear(); }),
              HasSubstr("1 part or 2, found 0"));
  EXPECT_THAT(broken([](TrainingStep& s) { s.options.linear_mfu = 0; }), HasSubstr("linear MFU"));
  EXPECT_THAT(broken([](TrainingStep& s) { s.options.tensor_parallel_overlap = 2; }),
              HasSubstr("overlap"));
  EXPECT_THAT(broken([](TrainingStep& s) { s.options.reserve_bytes = -1; }), HasSubstr("reserve"));
  EXPECT_THAT(broken([](TrainingStep& s) { s.model.kv_heads = 3; }), HasSubstr("KV heads"));
}

TEST(Recompute, NamesAreParsedBack) {
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    EXPECT_EQ(parse_recompute(to_string(recompute)), recompute);
  }
  EXPECT_THAT(message_of([] { static_cast<void>(parse_recompute("selectiv")); }),
              HasSubstr("did you mean 'selective'"));
}

}  // namespace
}  // namespace contextile
