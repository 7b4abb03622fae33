#include "strategy/distca/distca.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/verify.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

// Heads of few dims make transfers small compared with the compute.
Workload narrow_batch_of(const std::vector<std::int64_t>& lengths,
                         const std::string& mask = "causal") {
  AttentionShape shape = grouped_heads();
  shape.head_dim = shape.value_dim = 16;
  return batch_of(lengths, mask, shape);
}

Plan plan_of(const Workload& workload, std::int32_t devices, const StrategyRequest& request) {
  return build_plan(workload, cluster_of(1, devices),
                    distca_strategy().arrange(workload, cluster_of(1, devices), request));
}

StrategyRequest random_request(Rng& rng, std::int32_t devices) {
  StrategyRequest request;
  const auto flip = [&](const char* name, const char* a, const char* b) {
    request.options[name] = random_chance(rng, 0.5) ? a : b;
  };
  flip("kv", "actual", "document");
  flip("balance", "one_sided", "two_sided");
  flip("cost", "profile", "pairs");
  flip("kv_subrange", "on", "off");
  flip("resend", "on", "off");
  flip("relays", "on", "off");
  flip("granularity", "1", "16");
  flip("tolerance", "0", "0.1");
  if (request.options["resend"] == "on") flip("backward", "forward", "own");
  request.options["nano_batches"] = fmt::format("{}", random_between(rng, 1, 4));
  if (devices > 1 && random_chance(rng, 0.4)) {
    request.options["attention_servers"] = fmt::format("{}", random_between(rng, 1, devices - 1));
  }
  if (random_chance(rng, 0.4)) request.block_size = random_between(rng, 7, 120);
  request.backward = random_chance(rng, 0.9);
  return request;
}

// Gives tokens a home on the first `owners` devices.
void add_home(Rng& rng, std::int32_t owners, Workload& workload) {
  for (std::int64_t at = 0; at < workload.num_tokens();) {
    const std::int64_t end = std::min(workload.num_tokens(), at + random_between(rng, 1, 150));
    workload.home.push_back(
        {{at, end}, Rank{static_cast<std::int32_t>(random_between(rng, 0, owners - 1))}});
    at = end;
  }
}

TEST(Distca, MakesValidPlansUnderAnyOptions) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    Workload workload = narrow_batch_of(random_lengths(rng, 8, 300));
    const auto devices = static_cast<std::int32_t>(random_between(rng, 1, 9));
    const StrategyRequest request = random_request(rng, devices);
    if (random_chance(rng, 0.4) && !request.options.contains("attention_servers")) {
      add_home(rng, devices, workload);
    }
    SCOPED_TRACE(fmt::format("seed {} devices {}", seed, devices));
    const VerifyReport report = verify(plan_of(workload, devices, request));
    EXPECT_TRUE(report.ok()) << report.violations.front();
    EXPECT_TRUE(report.grouped_launches_ok);
    EXPECT_EQ(report.movement[0].redundant_transfers, 0);
    EXPECT_EQ(report.movement[1].redundant_transfers, 0);
  }
}

TEST(Distca, IsCausalOnlyHoweverTheMaskIsWritten) {
  const auto reason = [](const Workload& workload) {
    return distca_strategy().unsupported(workload, cluster_of(1, 4), {});
  };
  for (const char* mask : {"full", "sliding_window:7", "prefix_lm:3", "chunked:20", "lambda:2,9"}) {
    SCOPED_TRACE(mask);
    const auto found = reason(narrow_batch_of({30, 1, 44}, mask));
    ASSERT_TRUE(found);
    EXPECT_NE(found->find("is causal only"), std::string::npos);
    EXPECT_THROW(static_cast<void>(
                     distca_strategy().arrange(narrow_batch_of({30}, mask), cluster_of(1, 4), {})),
                 InvalidArgument);
  }
  EXPECT_FALSE(reason(narrow_batch_of({30, 1, 44}, "sliding_window:44")));
  EXPECT_FALSE(reason(narrow_batch_of({1, 1, 1}, "full")));
  Workload pieces = narrow_batch_of({30, 6});  // has the same pairs in several bands
  const Mask causal = pieces.masks[0].mask;
  pieces.masks[0].mask.bands.clear();
  for (const Range& keys : {Range{0, 11}, Range{11, 36}}) {
    for (const Band& band : causal.bands) {
      const Band part = clip(band, {0, 36}, keys);
      if (num_pairs(part) > 0) pieces.masks[0].mask.bands.push_back(part);
    }
  }
  EXPECT_FALSE(reason(pieces));
  pieces.masks[0].mask.bands.pop_back();
  EXPECT_TRUE(reason(pieces));
}

TEST(Distca, TakesSeveralCausalMasksAndNamesTheOneThatIsNot) {
  AttentionShape shape;
  std::vector<MaskUse> uses = {parse_mask_use("a=causal@3"), parse_mask_use("b=causal@2")};
  const Workload both = make_workload(std::vector<std::int64_t>{900, 50}, shape, uses);
  EXPECT_TRUE(verify(plan_of(both, 3, {})).ok());
  uses[1] = parse_mask_use("b=full@2");
  const Workload mixed = make_workload(std::vector<std::int64_t>{900, 50}, shape, uses);
  EXPECT_NE(distca_strategy().unsupported(mixed, cluster_of(1, 3), {})->find("'b'"),
            std::string::npos);
}

TEST(Distca, BalancesOneLongDocumentAmongManyShort) {
  std::vector<std::int64_t> lengths(2000, 160);
  lengths.push_back(20000);
  const Workload workload = narrow_batch_of(lengths);
  const auto overload = [&](const char* tolerance) {
    const StrategyRequest request =
        request_with({{"tolerance", tolerance}, {"cost", "pairs"}, {"nano_batches", "1"}});
    return statistics(plan_of(workload, 8, request)).forward->compute_overload;
  };
  EXPECT_GT(overload("100"), 0.5);  // nothing moves
  EXPECT_LE(overload("0.1"), 0.1);
}

TEST(Distca, AttentionServersOwnNothingAndCompute) {
  const Plan plan =
      plan_of(narrow_batch_of({9000, 300, 4000}), 6, request_with({{"attention_servers", "2"}}));
  const PlanStats stats = statistics(plan);
  for (std::size_t d = 0; d < 6; ++d) {
    const Rank rank{static_cast<std::int32_t>(d)};
    EXPECT_EQ(plan.rounds[0].owned_tokens(rank) == 0, d >= 4);
    EXPECT_GT(stats.forward->devices[d].flops, 0);
  }
  EXPECT_TRUE(verify(plan).ok());
}

TEST(Distca, RefusesServersWithoutOwnersAndNoNumberOfThem) {
  const Workload workload = narrow_batch_of({100});
  const auto reason = distca_strategy().unsupported(workload, cluster_of(1, 2),
                                                    request_with({{"attention_servers", "2"}}));
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("fewer attention servers than devices"), std::string::npos);
  for (const char* servers : {"", "-1", "dedicated:2", "1.5"}) {
    EXPECT_THROW(static_cast<void>(distca_strategy().unsupported(
                     workload, cluster_of(1, 2), request_with({{"attention_servers", servers}}))),
                 InvalidArgument);
  }
}

// Returns lengths that put one document of nearly a device's share, for four devices, in each half
// of the batch.
std::vector<std::int64_t> two_uneven_halves() {
  std::vector<std::int64_t> lengths;
  for (int half = 0; half < 2; ++half) {
    lengths.push_back(1900);
    lengths.insert(lengths.end(), 61, 100);
  }
  return lengths;
}

TEST(Distca, MovesOneNanoBatchUnderTheOther) {
  const Workload workload = narrow_batch_of(two_uneven_halves());
  const Arrangement arrangement = distca_strategy().arrange(workload, cluster_of(1, 4), {});
  const ArrangedDirection& forward = *arrangement.rounds[0].programs[0].forward;
  std::map<Kind, std::set<std::pair<std::int32_t, std::int32_t>>> stages;
  for (const Transfer& t : forward.transfers) {
    stages[t.kind].insert({t.launch_stage, t.need_stage});
  }
  const std::set<std::pair<std::int32_t, std::int32_t>> in = {{0, 1}, {1, 3}};
  const std::set<std::pair<std::int32_t, std::int32_t>> out = {{2, 4}, {4, 5}};
  EXPECT_EQ(stages[Kind::kKv], in);
  EXPECT_EQ(stages[Kind::kQ], in);
  EXPECT_EQ(stages[Kind::kO], out);
  const Arrangement single =
      distca_strategy().arrange(workload, cluster_of(1, 4), request_with({{"nano_batches", "1"}}));
  for (const Transfer& t : single.rounds[0].programs[0].forward->transfers) {
    EXPECT_EQ(t.launch_stage, is_result(t.kind) ? 2 : 0);
    EXPECT_EQ(t.need_stage, t.launch_stage + 1);
  }
}

TEST(Distca, KeepsInputsForBackwardUnlessTheyAreSentAgain) {
  const Workload workload = narrow_batch_of({20000, 300, 2500, 9000});
  const PlanStats kept = statistics(plan_of(workload, 4, {}));
  const PlanStats again = statistics(plan_of(workload, 4, request_with({{"resend", "on"}})));
  const auto bytes = [](const DirectionStats& stats, Kind kind) {
    return stats.bytes_by_kind[static_cast<std::size_t>(kind)];
  };
  EXPECT_GT(kept.forward->retained_bytes, 0);
  EXPECT_EQ(again.forward->retained_bytes, 0);
  for (const Kind kind : {Kind::kQ, Kind::kKv}) {
    EXPECT_EQ(bytes(*kept.backward, kind), 0);
    EXPECT_EQ(bytes(*again.backward, kind), bytes(*again.forward, kind));
  }
  EXPECT_EQ(bytes(*kept.backward, Kind::kDkv), bytes(*again.backward, Kind::kDkv));
}

TEST(Distca, PutsShortDocumentsIntoCompositeBlocks) {
  const std::vector<std::int64_t> lengths(2000, 37);
  const Arrangement arrangement =
      distca_strategy().arrange(narrow_batch_of(lengths), cluster_of(1, 8), {});
  EXPECT_LE(arrangement.rounds[0].blocks.num_blocks(), 8 * 2 * 4);
}

TEST(Distca, MergesPartialOutputsWhenKeysAreSharedOut) {
  const Workload workload = narrow_batch_of({30000, 300, 500, 900, 120});
  const auto shared_rows = [&](const char* subrange) {
    const Arrangement arrangement = distca_strategy().arrange(
        workload, cluster_of(1, 4), request_with({{"kv_subrange", subrange}, {"tolerance", "0"}}));
    std::map<BlockId, std::set<Rank>> devices;
    for (const PlacedTile& tile : arrangement.rounds[0].programs[0].forward->tiles) {
      devices[tile.q_block].insert(tile.device);
    }
    return std::count_if(devices.begin(), devices.end(),
                         [](const auto& entry) { return entry.second.size() > 1; });
  };
  EXPECT_EQ(shared_rows("off"), 0);
  EXPECT_GT(shared_rows("on"), 0);
}

TEST(Distca, UpstreamDecidesItsOptionsAndNeedsEvenLengths) {
  const StrategyRequest request =
      request_with({{"match_original", "on"}, {"balance", "two_sided"}});
  const auto cannot = [&](const std::vector<std::int64_t>& lengths) {
    return distca_strategy().unsupported(narrow_batch_of(lengths), cluster_of(1, 4), request);
  };
  EXPECT_NE(cannot({16, 15, 33})->find("found 15 for sequence 1"), std::string::npos);
  EXPECT_NE(cannot({16, 22})->find("multiple of 16"), std::string::npos);
  ASSERT_FALSE(cannot({1000, 600}));
  const Plan plan = plan_of(narrow_batch_of({1000, 600}), 4, request);
  EXPECT_EQ(plan.options.at("balance"), "one_sided");
  EXPECT_EQ(plan.options.at("granularity"), "1");
  EXPECT_EQ(plan.options.at("cost"), "pairs");
  EXPECT_EQ(plan.options.at("kv"), "document");
  EXPECT_TRUE(verify(plan).ok());
}

TEST(Distca, SaysWhenNoToleranceFitsTheBuffers) {
  const Workload workload = narrow_batch_of({20000, 300, 2500, 9000});
  const auto reason = distca_strategy().unsupported(workload, cluster_of(1, 4),
                                                    request_with({{"buffer_limit", "1"}}));
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("buffer_limit=1"), std::string::npos);
  const Workload movable =
      narrow_batch_of(two_uneven_halves());  // documents end where devices are full
  const StrategyRequest enough = request_with({{"buffer_limit", "700000"},
                                               {"tolerance", "0"},
                                               {"nano_batches", "1"},
                                               {"balance", "one_sided"},
                                               {"cost", "pairs"}});
  const Plan plan = plan_of(movable, 4, enough);
  EXPECT_GT(std::stod(plan.options.at("tolerance")), 0);
}

}  // namespace
}  // namespace contextile
