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
#include "planner/auto/placement_choices.h"
#include "planner/auto/search.h"
#include "planner/auto/search_state.h"
#include "planner/timed_block_size.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

// Options under which attention alone decides between plans.
StrategyRequest for_attention(const char* tokens = "auto") {
  StrategyRequest request;
  request.options = {{"objective", "attention"}, {"tokens", tokens}};
  return request;
}

Plan auto_plan(const Workload& workload, const Cluster& cluster, const StrategyRequest& request) {
  return build_plan(workload, cluster, find_strategy("auto").arrange(workload, cluster, request));
}

struct RandomBatch {
  Cluster cluster;
  Workload workload;
};
RandomBatch random_batch(std::uint64_t seed) {
  constexpr const char* kMasks[] = {"causal", "full", "lambda:16,200", "shared_question:0.2,3",
                                    "causal_blockwise:64,2,1"};
  Rng rng(seed);
  const Cluster cluster = cluster_of(random_chance(rng, 0.5) ? "p4de" : "dgx-h200",
                                     static_cast<std::int32_t>(random_between(rng, 1, 3)),
                                     static_cast<std::int32_t>(random_between(rng, 1, 5)));
  return {cluster, batch_of(random_lengths(rng, 8, 6000), kMasks[random_between(rng, 0, 4)])};
}

// Every plan of every other strategy at every variant and block size.
template <typename Visit>
void for_each_other(const RandomBatch& batch, StrategyRequest request, const Visit& visit) {
  for (const Strategy* strategy : strategies()) {
    SCOPED_TRACE(strategy->name());
    if (strategy->name() == "auto") continue;
    for (const auto& options : strategy->variants(batch.workload, batch.cluster, request)) {
      request.options = options;
      request.block_size.reset();
      if (strategy->unsupported(batch.workload, batch.cluster, request)) continue;
      SCOPED_TRACE(choice_text({"", options}));
      const auto sizes = timed_sizes(*strategy, batch.workload, request);
      for (std::size_t s = 0; s < std::max<std::size_t>(1, sizes.size()); ++s) {
        if (!sizes.empty()) request.block_size = sizes[s];
        visit(build_plan(batch.workload, batch.cluster,
                         strategy->arrange(batch.workload, batch.cluster, request)));
      }
    }
  }
}

std::int64_t most_tokens_of(const Plan& plan) {
  const PlanStats stats = statistics(plan);
  return std::llround((1 + stats.token_overload) * static_cast<double>(stats.tokens) /
                      (plan.nodes * plan.devices_per_node));
}

TEST(Auto, WithoutALimitTakesStepsThatEndInMinutes) {
  EXPECT_EQ(step_limit({}), 120'000'000);
  EXPECT_EQ(step_limit({.steps = 7}), 7);
  EXPECT_EQ(step_limit({.steps = 7, .budget_ms = 1'000}), 7);
  EXPECT_EQ(step_limit({.steps = std::int64_t{1} << 50U}), std::int64_t{1} << 50U);
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

// Two documents of 5000 and 3000 tokens on four devices: 2000 each. Uneven tokens save messages, but
// linear layers of a token take longer than that.
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

// Nodes that share an uplink of 50 GB/s.
Cluster with_shared_uplinks(std::int32_t nodes) {
  Cluster cluster = cluster_of("p4de", nodes, 4);
  cluster.attention_tflops = 280;
  cluster.attention = AttentionProfile::from_overheads(51, 9600, 0.86);
  cluster.intra_gbytes_per_s = 300;
  cluster.inter_gbytes_per_s_per_node = 50;
  cluster.nics_per_node = 1;
  cluster.flow_gbytes_per_s.clear();
  return cluster;
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

TEST(Auto, ABudgetStillGivesAValidPlan) {
  StrategyRequest request;
  request.options["budget_ms"] = "1";
  const Plan plan =
      auto_plan(batch_of({9000, 300, 20000, 70}, "causal"), cluster_of("dgx-h200", 2, 4), request);
  EXPECT_TRUE(verify(plan).ok());
}

TEST(Auto, AStepLimitGivesTheSameValidPlanEveryTime) {
  const Workload workload = batch_of({9000, 300, 20000, 70}, "causal");
  const Cluster cluster = cluster_of("dgx-h200", 2, 4);
  std::int64_t tried = 0;
  for (const char* steps : {"1", "30000", "300000", "0"}) {
    SCOPED_TRACE(steps);
    StrategyRequest request;
    request.options["steps"] = steps;
    const Plan plan = auto_plan(workload, cluster, request);
    EXPECT_TRUE(verify(plan).ok());
    EXPECT_EQ(plan.digest, auto_plan(workload, cluster, request).digest);
    EXPECT_GT(std::stoll(plan.options.at("tried")), tried);
    tried = std::stoll(plan.options.at("tried"));
  }
}

// If tiles did not count, every other strategy would fit. The last 256 rows attend all keys, the
// others about 640. A device, or node, that had those rows whole would fetch everything.
TEST(Auto, FewStepsGoIntoTilesWhereAFewRowsAttendFarMoreThanOthers) {
  const Cluster cluster = cluster_of("dgx-h200", 4, 8);
  const Workload workload = batch_of({131'072}, "causal_blockwise:256,2,1");
  StrategyRequest request;
  request.options["steps"] = "50000";
  const Plan few = auto_plan(workload, cluster, request);
  EXPECT_EQ(few.options.at("chosen.of"), "tiles");
  EXPECT_TRUE(verify(few).ok());
  request.options["steps"] = "1000000";
  EXPECT_LE(simulate(few, cluster).time_us(),
            1.5 * simulate(auto_plan(workload, cluster, request), cluster).time_us());
}

TEST(Auto, FewStepsComeNearTheBestStrategyThatDecidesByRule) {
  const Cluster cluster = cluster_of("dgx-h200", 4, 8);
  Workload workload = batch_of({131'072}, "causal");
  workload.shape.q_heads = workload.shape.kv_heads = 32;
  StrategyRequest request;
  request.options["steps"] = "50000";
  const double ours = simulate(auto_plan(workload, cluster, request), cluster).time_us();
  double best = std::numeric_limits<double>::infinity();
  for (const Strategy* strategy : strategies()) {
    if (strategy->deciding() != Deciding::kByRule) continue;
    StrategyRequest other;
    if (strategy->unsupported(workload, cluster, other)) continue;
    best = std::min(
        best, simulate(build_plan(workload, cluster, strategy->arrange(workload, cluster, other)),
                       cluster)
                  .time_us());
  }
  EXPECT_LE(ours, 1.05 * best);
}

// The bounds of the other strategies show that none can win. Their simulations cost nothing, and
// half of the steps go into placements.
TEST(Auto, StrategiesThatCannotWinLeaveStepsToPlacements) {
  const Cluster cluster = cluster_of("dgx-h200", 4, 8);
  const Workload workload =
      batch_of({37'933, 20'000, 17'067, 9000, 8000, 16'000, 3000, 2000, 12'000, 6072}, "causal");
  StrategyRequest request;
  request.options["steps"] = "300000";
  EXPECT_GE(std::stoll(auto_plan(workload, cluster, request).options.at("tried")), 20);
}

// Over slow links, 32 KV heads on 32 devices: tiles of single heads spread evenly without splitting
// documents.
TEST(Auto, PlacesTilesOfSingleKvHeads) {
  const Cluster cluster = with_shared_uplinks(2);
  Workload workload = batch_of({14'000, 2384}, "causal");
  workload.shape.q_heads = workload.shape.kv_heads = 32;
  StrategyRequest request;
  request.options["candidates"] = "own";
  const Plan plan = auto_plan(workload, cluster, request);
  EXPECT_TRUE(verify(plan).ok());
  EXPECT_EQ(plan.options.at("chosen.of"), "tiles");
  EXPECT_EQ(plan.options.at("chosen.head_groups"), "32");
}

TEST(BuildPlan, LeavesOutTheDigestWhereThatIsAskedFor) {
  const Cluster cluster = cluster_of("local", 1, 4);
  const Workload workload = batch_of({900, 300}, "causal");
  const Arrangement arrangement = find_strategy("zigzag").arrange(workload, cluster, {});
  Plan plan = build_plan(workload, cluster, arrangement, {.digest = false});
  EXPECT_EQ(plan.digest, 0U);
  EXPECT_NE(build_plan(workload, cluster, arrangement).digest, 0U);
}

TEST(Auto, StepsCountTheTilesOfTheBlocksThatWereAskedFor) {
  StrategyRequest request;
  request.block_size = 16;
  request.options["steps"] = "200000";
  const Plan plan = auto_plan(batch_of({8192}, "causal"), cluster_of("dgx-h200", 2, 4), request);
  EXPECT_LE(std::stoll(plan.options.at("tried")), 3);
}

TEST(Auto, TriesOnePlanWhereNoneFitsItsSteps) {
  StrategyRequest request;
  request.options["steps"] = "1";
  for (const char* candidates : {"all", "own"}) {
    request.options["candidates"] = candidates;
    const Plan plan =
        auto_plan(batch_of({9000, 300}, "causal"), cluster_of("dgx-h200", 2, 4), request);
    EXPECT_EQ(plan.options.at("tried"), "1") << candidates;
  }
}

// Rows are numbered with 16 bits.
TEST(Auto, PlansMoreDocumentsThanRowsCanBePlaced) {
  StrategyRequest request;
  request.options["steps"] = "1";
  const std::vector<std::int64_t> lengths(70'000, 1);
  const Plan plan = auto_plan(batch_of(lengths, "causal"), cluster_of("dgx-h200", 1, 4), request);
  EXPECT_TRUE(verify(plan).ok());
}

TEST(Auto, RefusesMemoryThatNothingFits) {
  Cluster cluster = cluster_of("dgx-h200", 1, 2);
  cluster.memory_bytes = 1000;
  EXPECT_THROW((void)auto_plan(batch_of({4000}, "causal"), cluster, {}), InvalidArgument);
}

TEST(Auto, ForwardOnlyPlansHaveNoBackward) {
  StrategyRequest request;
  request.backward = false;
  const Plan plan = auto_plan(batch_of({9000, 300}, "causal"), cluster_of("p4de", 1, 4), request);
  EXPECT_TRUE(verify(plan).ok());
  EXPECT_FALSE(statistics(plan).backward);
}

}  // namespace
}  // namespace contextile
