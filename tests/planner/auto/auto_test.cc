// `auto`: valid, never slower by prediction than any other strategy, the same every time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "contextile/advanced/model.h"
#include "contextile/data.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"
#include "planner/auto/arrangement_load.h"
#include "planner/auto/auto_support.h"
#include "planner/auto/placement_choices.h"
#include "planner/auto/search.h"
#include "planner/auto/search_state.h"
#include "planner/timed_block_size.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

TEST(Auto, WithoutALimitTakesStepsThatEndInMinutes) {
  EXPECT_EQ(step_limit({}, 8), 120'000'000);
  EXPECT_EQ(step_limit({.steps = 7}, 8), 7);
  EXPECT_EQ(step_limit({.steps = 7, .budget_ms = 1'000}, 8), 7);
  EXPECT_EQ(step_limit({.steps = std::int64_t{1} << 50U}, 8), std::int64_t{1} << 50U);
  // The larger of both limits.
  EXPECT_EQ(step_limit({.steps = 700, .steps_per_device = 50}, 8), 700);
  EXPECT_EQ(step_limit({.steps = 700, .steps_per_device = 100}, 8), 800);
  EXPECT_EQ(step_limit({.steps_per_device = 100}, 8), 800);
}

TEST(Auto, IsNeverSlowerThanAnotherStrategyByPrediction) {
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    const RandomBatch batch = random_batch(seed);
    const double ours =
        simulate(auto_plan(batch.workload, batch.cluster, for_attention("free")), batch.cluster)
            .time_us();
    for_each_other(batch, {}, [&](const Plan& plan) {
      EXPECT_LE(ours, simulate(plan, batch.cluster).time_us());
    });
  }
}

TEST(Auto, IsNeverSlowerThanAPlanThatOwnsNoMoreTokensThanItMay) {
  for (std::uint64_t seed = 20; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    const RandomBatch batch = random_batch(seed);
    const std::int64_t devices = batch.cluster.num_devices();
    const std::int64_t cap = (batch.workload.num_tokens() + devices - 1) / devices + 1024;
    const Plan plan = auto_plan(batch.workload, batch.cluster, for_attention());
    EXPECT_LE(most_tokens_of(plan), cap);
    const double ours = simulate(plan, batch.cluster).time_us();
    for_each_other(batch, {}, [&](const Plan& other) {
      if (most_tokens_of(other) > cap) return;
      EXPECT_LE(ours, simulate(other, batch.cluster).time_us());
    });
  }
}

// Without a price, a guess of it.
TEST(Auto, PaysForTokensWhatLinearLayersCost) {
  for (std::uint64_t seed = 40; seed < 46; ++seed) {
    SCOPED_TRACE(seed);
    const RandomBatch batch = random_batch(seed);
    StrategyRequest request;
    if (seed % 3 != 0) request.linear_us_per_token = seed % 3 == 1 ? 0.3 : 3;
    const double linear_us = request.linear_us_per_token.value_or(
        guessed_linear_us_per_token(batch.workload.shape, batch.cluster));
    const auto layer_us = [&](const Plan& plan) {
      return simulate(plan, batch.cluster).time_us() +
             3 * linear_us * static_cast<double>(most_tokens_of(plan));
    };
    const double ours = layer_us(auto_plan(batch.workload, batch.cluster, request));
    for_each_other(batch, request,
                   [&](const Plan& plan) { EXPECT_LE(ours, layer_us(plan) * (1 + 1e-9)); });
  }
}

// Two documents of 5000 and 3000 tokens on four devices: 2000 each. Uneven tokens save messages,
// but linear layers of a token take longer than that.
TEST(Auto, SpreadsTokensEvenlyWhereLinearLayersWaitForThem) {
  const Workload workload = batch_of({5000, 3000}, "causal");
  const Cluster cluster = cluster_of("p4de", 2, 2);
  StrategyRequest request;
  request.options["candidates"] = "own";
  request.linear_us_per_token = 10;
  EXPECT_EQ(most_tokens_of(auto_plan(workload, cluster, request)), 2000);
  request.linear_us_per_token = 0;
  EXPECT_GT(most_tokens_of(auto_plan(workload, cluster, request)), 2000);
}

// A home layout fixes the tokens of every device, so that only attention differs.
TEST(Auto, IsNeverSlowerThanAnotherStrategyUnderAHomeLayout) {
  for (std::uint64_t seed = 60; seed < 66; ++seed) {
    SCOPED_TRACE(seed);
    RandomBatch batch = random_batch(seed);
    batch.workload.home = load_layout(seed % 2 == 0 ? "zigzag" : "contiguous",
                                      batch.workload.sequences, batch.cluster.num_devices());
    // Uneven: the first rank owns what the last one did.
    for (HomeRange& home : batch.workload.home) {
      if (home.owner.value + 1 == batch.cluster.num_devices()) home.owner = Rank{0};
    }
    StrategyRequest request;
    request.linear_us_per_token = 2;
    const Arrangement found = find_strategy("auto").arrange(batch.workload, batch.cluster, request);
    const Plan plan = build_plan(batch.workload, batch.cluster, found);
    const double ours = simulate(plan, batch.cluster).time_us();
    for_each_other(batch, request, [&](const Plan& other) {
      EXPECT_LE(ours, simulate(other, batch.cluster).time_us());
    });
    const double layer_us = std::stod(found.options.at("predicted_layer_us"));
    EXPECT_NEAR(layer_us, ours + 3 * 2 * static_cast<double>(most_tokens_of(plan)), 0.1);
  }
}

// Its own placements cut blocks for it; those of other strategies are cut when they are arranged.
TEST(Auto, IsNeverSlowerThanAnotherStrategyWhereTokensAreMultiples) {
  for (std::uint64_t seed = 80; seed < 86; ++seed) {
    SCOPED_TRACE(seed);
    RandomBatch batch = random_batch(seed);
    const std::int64_t devices = batch.cluster.num_devices();
    StrategyRequest request;
    request.tokens_multiple = 16;
    request.equal_tokens = seed % 2 == 0;
    if (seed % 3 == 0) request.options["objective"] = "attention";
    const std::int64_t tokens = batch.workload.num_tokens();
    batch.workload = batch_of({tokens, 32 * devices - tokens % (16 * devices)});
    const double token_us = request.options.empty() ? 3 * 2 : 0;
    request.linear_us_per_token = 2;
    const auto layer_us_of = [&](const Plan& plan) {
      return simulate(plan, batch.cluster).time_us() +
             token_us * static_cast<double>(most_tokens_of(plan));
    };
    const Arrangement found = find_strategy("auto").arrange(batch.workload, batch.cluster, request);
    const Plan plan = build_plan(batch.workload, batch.cluster, found);
    EXPECT_TRUE(verify(plan).ok());
    EXPECT_EQ(most_tokens_of(plan) % 16, 0);
    const double ours = layer_us_of(plan);
    EXPECT_NEAR(std::stod(found.options.at("predicted_us")),
                simulate(plan, batch.cluster).time_us(), 0.1);
    for_each_other(batch, request,
                   [&](const Plan& other) { EXPECT_LE(ours, layer_us_of(other) * (1 + 1e-9)); });
  }
}

// Host time of stages and launches and merges apart from attention make other plans worth while.
TEST(Auto, ChoosesForTheEngineOfTheCluster) {
  double chosen_us = 0;
  double other_us = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const Workload workload =
        batch_of(batches_from_dataset("prolong", {.tokens = 16384, .seed = seed}).front());
    const Cluster native = cluster_of("dgx-h200", 2, 4);
    Cluster torch = native;
    torch.engine = find_engine("torch");
    StrategyRequest request;
    request.options["steps"] = "100000";
    chosen_us += simulate(auto_plan(workload, torch, request), torch).time_us();
    other_us += simulate(auto_plan(workload, native, request), torch).time_us();
  }
  EXPECT_LT(chosen_us, 0.9 * other_us);
}

TEST(Auto, KeepsToATokenLimit) {
  for (std::uint64_t seed = 100; seed < 106; ++seed) {
    SCOPED_TRACE(seed);
    const RandomBatch batch = random_batch(seed);
    const std::int64_t devices = batch.cluster.num_devices();
    const std::int64_t mean = (batch.workload.num_tokens() + devices - 1) / devices;
    StrategyRequest request;
    request.limits.tokens = mean + 1 + mean / 8;
    for (const char* tokens : {"even", "free"}) {
      request.options["tokens"] = tokens;
      EXPECT_LE(most_tokens_of(auto_plan(batch.workload, batch.cluster, request)),
                *request.limits.tokens);
    }
  }
}

// Placements cut no block, but other strategies may.
TEST(Auto, KeepsToATokenLimitBelowARequestedBlockSize) {
  const Workload workload = batch_of({22, 13}, "causal");
  StrategyRequest request;
  request.block_size = 100;
  request.limits.tokens = 8;
  EXPECT_LE(most_tokens_of(auto_plan(workload, cluster_of("dgx-h200", 2, 4), request)), 8);
}

std::int64_t peak_memory_of(const Plan& plan) {
  const PlanStats stats = statistics(plan);
  return std::max(stats.forward->peak_memory_bytes, stats.backward->peak_memory_bytes);
}

// If the fastest plan needs more than the leanest of the others, a limit between them refuses it.
TEST(Auto, KeepsToAMemoryLimitThatAnotherStrategyKeeps) {
  int tightened = 0;
  for (std::uint64_t seed = 100; seed < 108; ++seed) {
    SCOPED_TRACE(seed);
    const RandomBatch batch = random_batch(seed);
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for_each_other(batch, {},
                   [&](const Plan& plan) { least = std::min(least, peak_memory_of(plan)); });
    StrategyRequest request = for_attention("free");
    if (peak_memory_of(auto_plan(batch.workload, batch.cluster, request)) > least) ++tightened;
    request.limits.memory_bytes = least;
    const Plan plan = auto_plan(batch.workload, batch.cluster, request);
    EXPECT_LE(peak_memory_of(plan), least);
    const double ours = simulate(plan, batch.cluster).time_us();
    for_each_other(batch, {}, [&](const Plan& other) {
      if (peak_memory_of(other) > least) return;
      EXPECT_LE(ours, simulate(other, batch.cluster).time_us());
    });
  }
  EXPECT_GT(tightened, 0);
}

// A search that has no steps left for other strategies tries them all the same.
TEST(Auto, KeepsToLimitsOnTokensAndMemoryInAShortSearch) {
  const Cluster cluster = cluster_of("p4de", 1, 3);
  const Workload small = batch_of({1, 31, 1, 454}, "causal");
  StrategyRequest request;
  request.options["steps"] = "20000";
  request.limits.tokens = 163;
  EXPECT_LE(most_tokens_of(auto_plan(small, cluster, request)), 163);

  const Workload one = batch_of({32'768}, "causal");
  const Cluster nodes = cluster_of("p4de", 4, 8);
  StrategyRequest lean;
  lean.block_size = 128;
  const Strategy& ring = find_strategy("ring");
  const std::int64_t bytes = peak_memory_of(build_plan(one, nodes, ring.arrange(one, nodes, lean)));
  lean.limits.memory_bytes = bytes;
  lean.options["steps"] = "1000";
  EXPECT_LE(peak_memory_of(auto_plan(one, nodes, lean)), bytes);
}

TEST(Auto, CountsBlocksThatHomesCut) {
  Workload workload = batch_of({1000, 37, 500}, "causal");
  workload.home = load_layout("zigzag", workload.sequences, 4);
  const TileGrid cut = cut_into_tiles(workload, cut_sequences(workload, 128, BandCuts::kEdges));
  EXPECT_EQ(num_blocks(workload, 128), cut.work.blocks.num_blocks());
  EXPECT_LE(likely_tiles(workload, 128), 2 * std::ssize(cut.all_tiles));
  EXPECT_GE(2 * likely_tiles(workload, 128), std::ssize(cut.all_tiles));
}

TEST(Auto, SaysWhatTheLeanestCandidateNeedsWhereNoneFitsTheMemoryLimit) {
  const RandomBatch batch = random_batch(100);
  StrategyRequest request;
  request.limits.memory_bytes = 1000;
  std::string error;
  try {
    (void)auto_plan(batch.workload, batch.cluster, request);
  } catch (const InvalidArgument& refused) {
    error = refused.what();
  }
  EXPECT_NE(error.find("expected a plan that needs at most 1000 bytes of a device (the memory "
                       "limit), found "),
            std::string::npos)
      << error;
  // The memory that the error says is needed is enough, and a byte less is not.
  request.limits.memory_bytes = std::stoll(error.substr(error.find("found ") + 6));
  EXPECT_GT(*request.limits.memory_bytes, 1000);
  EXPECT_LE(peak_memory_of(auto_plan(batch.workload, batch.cluster, request)),
            *request.limits.memory_bytes);
}

TEST(ArrangementLoad, LeastTimeIsNeverUndercut) {
  for (std::uint64_t seed = 60; seed < 80; ++seed) {
    SCOPED_TRACE(seed);
    const RandomBatch batch = random_batch(seed);
    for (const Strategy* strategy : strategies()) {
      SCOPED_TRACE(strategy->name());
      if (strategy->name() == "auto" || strategy->unsupported(batch.workload, batch.cluster, {})) {
        continue;
      }
      const Arrangement arrangement = strategy->arrange(batch.workload, batch.cluster, {});
      const Plan plan = build_plan(batch.workload, batch.cluster, arrangement);
      const double least_us = least_time_us(batch.workload, batch.cluster, arrangement);
      const double time_us = simulate(plan, batch.cluster).time_us();
      EXPECT_LE(least_us, time_us * (1 + 1e-9));
      constexpr double kLatencies = 200;  // which shorter plans are made of
      if (time_us > kLatencies) {
        EXPECT_GT(least_us, 0.01 * time_us);
      }
      EXPECT_EQ(most_tokens(arrangement, batch.cluster), most_tokens_of(plan));
    }
  }
}

// Finished results travel in bf16 between nodes, partial ones in f32.
TEST(ArrangementLoad, CountsFinishedResultsAsTheyTravel) {
  AttentionShape shape;
  shape.q_heads = shape.kv_heads = 32;
  const MaskUse use = parse_mask_use("lambda:64,1024");
  const Workload workload =
      make_workload(std::vector<std::int64_t>{16384, 300, 8000, 8084}, shape, {&use, 1});
  const Cluster cluster = cluster_of("p4de", 4, 4);
  StrategyRequest request;
  request.block_size = 1024;
  for (const char* results : {"after", "early"}) {
    SCOPED_TRACE(results);
    request.options = {{"relays", "on"}, {"results", results}, {"share", "reached"}};
    const Arrangement arrangement = find_strategy("dcp").arrange(workload, cluster, request);
    const double time_us = simulate(build_plan(workload, cluster, arrangement), cluster).time_us();
    EXPECT_LE(least_time_us(workload, cluster, arrangement), time_us);
  }
}

TEST(Auto, OwnPlacementsAreValidWithAndWithoutRetainedInputs) {
  for (const char* mask : {"causal", "full", "lambda:64,1024", "causal_blockwise:256,2,1",
                           "shared_question:0.2,4", "sliding_window:700", "prefix_lm:100"}) {
    for (const char* retain : {"on", "off"}) {
      SCOPED_TRACE(fmt::format("{} retain={}", mask, retain));
      StrategyRequest request;
      request.block_size = 512;
      request.options = {{"candidates", "own"}, {"retain", retain}};
      const Plan plan = auto_plan(batch_of({9000, 300, 2500, 120, 4100}, mask),
                                  cluster_of("p4de", 2, 4), request);
      EXPECT_EQ(plan.options.at("chosen"), "placement");
      const VerifyReport report = verify(plan);
      EXPECT_TRUE(report.ok()) << report.violations.front();
      EXPECT_TRUE(report.grouped_launches_ok);
      EXPECT_EQ(report.movement[0].redundant_transfers, 0);
      EXPECT_EQ(report.movement[1].redundant_transfers, 0);
    }
  }
}

TEST(Auto, RetainedInputsDoNotTravelAgain) {
  const Workload workload = batch_of({30000}, "causal");
  const auto backward_inputs = [&](const char* retain) {
    StrategyRequest request;
    request.block_size = 1024;
    request.options = {{"candidates", "own"}, {"retain", retain}};
    const PlanStats stats = statistics(auto_plan(workload, cluster_of("p4de", 2, 4), request));
    return stats.backward->bytes_by_kind[static_cast<std::size_t>(Kind::kKv)] +
           stats.backward->bytes_by_kind[static_cast<std::size_t>(Kind::kQ)];
  };
  EXPECT_EQ(backward_inputs("on"), 0);
  EXPECT_GT(backward_inputs("off"), 0);
}

TEST(Auto, MakesTheSamePlanEveryTimeAndSaysWhatItChose) {
  const Workload workload = batch_of({9000, 300, 20000, 70}, "causal");
  const Cluster cluster = cluster_of("dgx-h200", 2, 4);
  const Plan plan = auto_plan(workload, cluster, {});
  EXPECT_EQ(plan.digest, auto_plan(workload, cluster, {}).digest);
  EXPECT_EQ(plan.strategy, "auto");
  EXPECT_FALSE(plan.options.at("chosen").empty());
  EXPECT_FALSE(plan.options.at("binding").empty());
  EXPECT_NEAR(std::stod(plan.options.at("predicted_us")), simulate(plan, cluster).time_us(), 0.1);
}

TEST(TimedBlockSize, TakesTheSizeThatIsPredictedFastestWithItsLinearLayers) {
  const Workload workload = batch_of({20000, 700, 9000}, "causal");
  const Cluster cluster = cluster_of("p4de", 1, 4);
  const auto time_us = [&](const char* strategy, const StrategyRequest& request) {
    return layers_us(workload, cluster,
                     arrange_timed(find_strategy(strategy), workload, cluster, request), request);
  };
  double best_dcp = time_us("dcp", {});
  StrategyRequest automatic;
  automatic.options["block"] = "auto";
  double best_fcp = time_us("fcp", automatic);
  for (const std::int64_t size : {1024, 2048, 4096}) {
    StrategyRequest sized;
    sized.block_size = size;
    EXPECT_LE(best_dcp, time_us("dcp", sized));
    EXPECT_LE(best_fcp, time_us("fcp", sized));
  }
}

std::int64_t most_tokens(const Plan& plan) {
  const PlanStats stats = statistics(plan);
  return std::llround((1 + stats.token_overload) * static_cast<double>(stats.tokens) /
                      (plan.nodes * plan.devices_per_node));
}

TEST(TimedBlockSize, PaysForEvenTokensWhatLinearLayersCost) {
  const Workload workload = batch_of({50000, 9000, 2500, 4100}, "causal");
  const Cluster cluster = with_shared_uplinks(4);
  const auto planned = [&](double linear_us_per_token) {
    StrategyRequest request;
    request.linear_us_per_token = linear_us_per_token;
    return build_plan(workload, cluster,
                      arrange_timed(find_strategy("dcp"), workload, cluster, request));
  };
  const Plan free = planned(0);
  const Plan dear = planned(100);
  EXPECT_LT(most_tokens(dear), most_tokens(free));
  EXPECT_LT(simulate(free, cluster).time_us(), simulate(dear, cluster).time_us());
  StrategyRequest request;
  const Arrangement arrangement = find_strategy("dcp").arrange(workload, cluster, request);
  const Plan plan = build_plan(workload, cluster, arrangement);
  request.linear_us_per_token = 2;
  EXPECT_NEAR(layers_us(workload, cluster, arrangement, request),
              simulate(plan, cluster).time_us() + 3 * 2.0 * static_cast<double>(most_tokens(plan)),
              1e-6);
}

}  // namespace
}  // namespace contextile
