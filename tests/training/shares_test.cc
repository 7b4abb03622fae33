// Training steps whose ranks own different numbers of tokens.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/training.h"
#include "contextile/base.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/planner.h"
#include "support/mask_support.h"
#include "training/simple_step.h"

namespace contextile {
namespace {

// Two ranks with these tokens, and how long before the last one they are done with attention.
RoundShares two_ranks(const DeviceShare& first, const DeviceShare& second) {
  return {.layers = 1, .devices = {first, second}};
}

TrainingStep uneven_step(const RoundShares& shares) {
  TrainingStep step = step_of({.tp = 1, .cp = 2, .dp = 1, .pp = 1}, simple_cluster(1, 2), 1);
  step.options.gradient_overlap = GradientOverlap::kOff;
  BatchPart& part = step.replicas[0][0].parts[0];
  part.device_tokens = std::max(shares.devices[0].tokens, shares.devices[1].tokens);
  part.shares = {shares};
  return step;
}

TEST(RankShares, ARankThatOwnsMoreGoesOnFromTheEndOfItsOwnAttention) {
  // 24 us before attention and 112 after it for 1000 tokens, backward twice that; attention 50 and
  // 100, which the fuller rank leaves 30 and 40 earlier; the head's 80.
  const TrainingStep step = uneven_step(two_ranks({1500, 30, 40}, {500, 0, 0}));
  const StepPrediction found = predict_step(step);
  const double forward_us = 36 + 3 * (204 - 30) + (168 + 120 - 30) + 4 * 50;
  const double backward_us = (240 + 336) + 3 * (408 - 40) + (72 - 40) + 4 * 100;
  EXPECT_NEAR(found.timelines.front().time_us, forward_us + backward_us, 1e-6);
  const StageTimes& stage = found.stages.front();
  EXPECT_NEAR(stage.linear_us, 3 * 1.5 * (4 * 136 + 80), 1e-6);
  // Attention until the fuller rank's own end.
  EXPECT_NEAR(stage.attention_us + stage.exposed_attention_us, 4 * (50 - 30 + 100 - 40), 1e-6);
  EXPECT_NEAR(stage.total_us(), found.time_us, 1e-6);
}

TEST(RankShares, ARankThatLeavesAttentionLastDecidesByItsOwnLinearLayers) {
  // Between attentions the second rank, which has less to do, comes last.
  const TrainingStep step = uneven_step(two_ranks({1100, 45, 0}, {900, 0, 0}));
  const double gap_us = 0.9 * 136;
  const double forward_us = 1.1 * 24 + 3 * gap_us + 0.9 * (112 + 80) + 4 * 50;
  const double backward_us = 1.1 * 2 * (4 * 136 + 80) + 4 * 100;
  const StepPrediction found = predict_step(step);
  EXPECT_NEAR(found.timelines.front().time_us, forward_us + backward_us, 1e-6);
  EXPECT_NEAR(found.stages.front().linear_us, forward_us - 4 * 50 + backward_us - 4 * 100, 1e-6);
}

TEST(RankShares, RoundsAndMasksAddUpByTheirShares) {
  TrainingStep step = uneven_step(two_ranks({1000, 0, 0}, {1000, 0, 0}));
  BatchPart& part = step.replicas[0][0].parts[0];
  // Two masks of one round, and a round of a fuller second rank.
  part.shares = {two_ranks({1000, 10, 0}, {600, 0, 0}), two_ranks({1000, 50, 0}, {600, 0, 0}),
                 two_ranks({0, 0, 0}, {500, 0, 0})};
  part.shares[0].layers = 0.75;
  part.shares[1].layers = 0.25;
  const double near = 24 + 3 * (136 - 10) + (112 + 80 - 10);
  const double far = 24 + 3 * (136 - 50) + (112 + 80 - 50);
  const double second = 0.5 * (4 * 136 + 80);
  const double backward_us = 1.5 * 2 * (4 * 136 + 80) + 4 * 100;
  EXPECT_NEAR(predict_step(step).timelines.front().time_us,
              0.75 * near + 0.25 * far + second + 4 * 50 + backward_us, 1e-6);
}

TEST(RankShares, GradientsHideUnderTheLayersForWhichAllRanksWait) {
  const auto seen_us = [](std::int64_t first, std::int64_t second) {
    TrainingStep step = uneven_step(two_ranks({first, 0, 0}, {second, 0, 0}));
    step.options.optimizer = OptimizerShards::kNone;
    step.options.gradient_overlap = GradientOverlap::kOn;
    step.options.collective_share = 0.72;
    return predict_step(step).stages.front().gradients_us;
  };
  const double weights = 4 * 34'004'000 + 40'002'000;
  const double layer_us = 2 * 0.5 * weights / (0.72 * 1000e3);  // one hop of half, twice
  const double per_token_us = 2 * 136 / 1000.0;
  ASSERT_GT(layer_us, 500 * per_token_us);
  // The last of four layers has nothing behind it.
  const auto expected_us = [&](double most) {
    return 3 * (layer_us - most * per_token_us) + layer_us;
  };
  EXPECT_NEAR(seen_us(400, 400), expected_us(400), 1e-6);
  EXPECT_NEAR(seen_us(500, 300), expected_us(500), 1e-6);
  EXPECT_NEAR(seen_us(300, 500), expected_us(500), 1e-6);
  EXPECT_NEAR(seen_us(500, 0), expected_us(500), 1e-6);
}

// The step of one group and its plan: shares as planned, or every rank as full as the fullest.
double step_us(const Cluster& cluster, BatchPart part, bool own_shares) {
  if (!own_shares) part.shares.clear();
  TrainingStep step;
  step.model = load_model("llama-3-8b");
  step.cluster = cluster;
  step.sizes = {.tp = 1, .cp = cluster.num_devices(), .dp = 1, .pp = 1};
  step.options.gradient_overlap = GradientOverlap::kOff;
  step.replicas = {{{{std::move(part)}}}};
  return predict_step(step).timelines.front().time_us;
}

TEST(RankShares, StepsLieBetweenEveryRanksOwnTimeAndThatOfTheFullest) {
  const Cluster cluster = load_cluster("dgx-h200:2x4");
  const AttentionShape shape{.q_heads = 32, .kv_heads = 8};
  int faster = 0;
  for (const char* name : {"ring", "zigzag", "magi", "megatron_dynamic", "bytescale"}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE(fmt::format("{}, seed {}", name, seed));
      Rng rng(seed);
      const Workload workload =
          make_workload(random_lengths(rng, 12, 20000), shape, parse_mask_use("causal"));
      const Plan plan =
          build_plan(workload, cluster, find_strategy(name).arrange(workload, cluster, {}));
      const BatchPart part = batch_part_of(plan, cluster, 1);
      ASSERT_EQ(part.shares.size(), plan.rounds.size());
      double least_us = 0;
      for (std::size_t r = 0; r < 8; ++r) {
        BatchPart own = part;
        own.device_tokens = 0;
        for (std::size_t k = 0; k < plan.rounds.size(); ++k) {
          const DeviceShare& share = part.shares[k].devices[r];
          EXPECT_EQ(share.tokens, plan.rounds[k].owned_tokens(Rank{static_cast<std::int32_t>(r)}));
          own.device_tokens += share.tokens;
          own.attention.forward.time_us -= share.forward_idle_us;
          own.attention.backward.time_us -= share.backward_idle_us;
        }
        least_us = std::max(least_us, step_us(cluster, own, false));
      }
      const double found_us = step_us(cluster, part, true);
      const double fullest_us = step_us(cluster, part, false);
      EXPECT_GE(found_us, least_us * (1 - 1e-12));
      EXPECT_LE(found_us, fullest_us * (1 + 1e-12));
      faster += found_us < 0.999 * fullest_us ? 1 : 0;
    }
  }
  EXPECT_GE(faster, 3);
}

}  // namespace
}  // namespace contextile
