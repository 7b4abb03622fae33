#include "strategy/fcp/fcp.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/data.h"
#include "contextile/extend/plan_build.h"
#include "contextile/plan.h"
#include "contextile/verify.h"
#include "strategy/fcp/distributor.h"
#include "strategy/fcp/fcp_traffic.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

using testing::HasSubstr;

using Options = std::map<std::string, std::string>;

StrategyRequest with(Options options) {
  StrategyRequest request;
  request.options = std::move(options);
  return request;
}

// Returns documents with eight KV heads, so that Ulysses groups have heads to split.
Workload many_heads_of(const std::vector<std::int64_t>& lengths) {
  return batch_of(lengths, "causal", AttentionShape{});
}

// Gives every device an equal run of tokens.
void add_contiguous_home(Workload& workload, std::int32_t num_devices) {
  const std::int64_t tokens = workload.num_tokens();
  for (std::int32_t r = 0; r < num_devices; ++r) {
    const Range range{tokens * r / num_devices, tokens * (r + 1) / num_devices};
    if (!range.empty()) workload.home.push_back({range, Rank{r}});
  }
}

Plan verified_plan(const Workload& workload, const Cluster& cluster,
                   const StrategyRequest& request) {
  Plan plan = build_plan(workload, cluster, fcp_strategy().arrange(workload, cluster, request));
  const VerifyReport report = verify(plan);
  EXPECT_TRUE(report.ok()) << report.violations.front();
  EXPECT_TRUE(report.grouped_launches_ok);
  for (const DataMovement& movement : report.movement) {
    EXPECT_EQ(movement.redundant_transfers, 0);
  }
  return plan;
}

// ---------------------------------------------------------------------------------- pipeline

// Sends and receives of one kind by (device, need stage).
using Counts = std::map<std::pair<Rank, std::int32_t>, int>;
std::pair<Counts, Counts> sends_and_receives(const ArrangedDirection& direction, Kind kind) {
  std::pair<Counts, Counts> counts;
  for (const Transfer& t : direction.transfers) {
    if (t.kind != kind) continue;
    ++counts.first[{t.src, t.need_stage}];
    ++counts.second[{t.dst, t.need_stage}];
  }
  return counts;
}

int largest(const Counts& counts) {
  int result = 0;
  for (const auto& [key, count] : counts) result = std::max(result, count);
  return result;
}

// Returns the most blocks that a device sends or receives in total: fewer rounds are impossible.
int largest_degree(const std::pair<Counts, Counts>& counts) {
  std::map<Rank, int> sends;
  std::map<Rank, int> receives;
  for (const auto& [key, count] : counts.first) sends[key.first] += count;
  for (const auto& [key, count] : counts.second) receives[key.first] += count;
  int result = 0;
  for (const auto& [rank, count] : sends) result = std::max(result, count);
  for (const auto& [rank, count] : receives) result = std::max(result, count);
  return result;
}

std::int32_t num_stages(const Counts& counts) {
  std::set<std::int32_t> stages;
  for (const auto& [key, count] : counts) stages.insert(key.second);
  return static_cast<std::int32_t>(stages.size());
}

TEST(FcpPipeline, SendsAndReceivesOneBlockARoundInAsFewRoundsAsPossible) {
  const Workload workload = many_heads_of({9000, 2500, 700, 600, 300, 5000});
  const Arrangement arrangement = fcp_strategy().arrange(
      workload, cluster_of(2, 4), with({{"block", "128"}, {"coalesce", "1"}}));
  for (const auto& [direction, kind] :
       {std::pair{&arrangement.rounds[0].programs[0].forward, Kind::kKv},
        {&arrangement.rounds[0].programs[0].backward, Kind::kKv},
        {&arrangement.rounds[0].programs[0].backward, Kind::kDkv}}) {
    const auto counts = sends_and_receives(**direction, kind);
    EXPECT_EQ(largest(counts.first), 1);
    EXPECT_EQ(largest(counts.second), 1);
    EXPECT_EQ(num_stages(counts.first), largest_degree(counts));
  }
}

TEST(FcpPipeline, CoalescesRoundsIntoStages) {
  const Workload workload = many_heads_of({9000, 2500, 700, 600, 300, 5000});
  for (const int coalesce : {2, 5, 16}) {
    SCOPED_TRACE(coalesce);
    const Arrangement arrangement =
        fcp_strategy().arrange(workload, cluster_of(2, 4),
                               with({{"block", "128"}, {"coalesce", fmt::format("{}", coalesce)}}));
    for (const auto& [direction, kind] :
         {std::pair{&arrangement.rounds[0].programs[0].forward, Kind::kKv},
          {&arrangement.rounds[0].programs[0].backward, Kind::kDkv}}) {
      const auto counts = sends_and_receives(**direction, kind);
      EXPECT_LE(largest(counts.first), coalesce);
      EXPECT_LE(largest(counts.second), coalesce);
      const int degree = largest_degree(counts);
      EXPECT_EQ(num_stages(counts.first), (degree + coalesce - 1) / coalesce);
    }
  }
}

TEST(FcpPipeline, WithoutColouringSendersAreCongested) {
  const Workload workload = many_heads_of({20000});
  const Options options = {{"block", "256"}, {"coalesce", "1"}, {"congestion_free", "off"}};
  const Arrangement arrangement = fcp_strategy().arrange(workload, cluster_of(2, 4), with(options));
  const auto counts = sends_and_receives(*arrangement.rounds[0].programs[0].forward, Kind::kKv);
  EXPECT_GT(largest(counts.first), 1);
  EXPECT_EQ(largest(counts.second), 1);
}

TEST(FcpPipeline, KeepsTheStagesOfItsBuffersInFlight) {
  const Workload workload = many_heads_of({20000});
  for (const int buffers : {2, 3, 5}) {
    const Arrangement arrangement = fcp_strategy().arrange(
        workload, cluster_of(1, 8),
        with({{"block", "256"}, {"coalesce", "2"}, {"buffers", fmt::format("{}", buffers)}}));
    const ArrangedMask& mask = arrangement.rounds[0].programs[0];
    for (const Transfer& t : mask.forward->transfers) {
      EXPECT_EQ(t.launch_stage, std::max(0, t.need_stage - (buffers - 1)));
    }
    std::map<std::pair<BlockId, Rank>, std::int32_t> last;
    for (const PlacedTile& tile : mask.backward->tiles) {
      std::int32_t& stage = last[{tile.kv_block, tile.device}];
      stage = std::max(stage, tile.stage);
    }
    for (const Transfer& t : mask.backward->transfers) {
      if (t.kind != Kind::kDkv) continue;
      EXPECT_EQ(t.launch_stage, (last[{t.block, t.src}] + 1));
      EXPECT_EQ(t.need_stage, t.launch_stage + buffers - 1);
    }
  }
}

TEST(FcpPipeline, RunsLocalTilesFirstAndInBackwardAlsoLast) {
  const Workload workload = many_heads_of({20000});
  const Arrangement arrangement =
      fcp_strategy().arrange(workload, cluster_of(1, 8), with({{"block", "256"}}));
  const ArrangedRound& round = arrangement.rounds[0];
  const auto local_pairs_by_stage = [&](const ArrangedDirection& direction) {
    std::map<std::int32_t, std::int64_t> pairs;
    for (const PlacedTile& tile : direction.tiles) {
      if (round.owners[tile.kv_block.index()] == tile.device) pairs[tile.stage] += tile.pairs;
    }
    return pairs;
  };
  const auto last_keys = [](const ArrangedDirection& direction) {
    std::int32_t last = 0;
    for (const Transfer& t : direction.transfers) {
      if (t.kind == Kind::kKv) last = std::max(last, t.need_stage);
    }
    return last;
  };
  const ArrangedMask& mask = round.programs[0];
  EXPECT_EQ(local_pairs_by_stage(*mask.forward).size(), 1U);  // nothing leaves in forward
  const auto backward = local_pairs_by_stage(*mask.backward);
  ASSERT_EQ(backward.size(), 2U);
  EXPECT_EQ(backward.begin()->first, 0);
  EXPECT_EQ(backward.rbegin()->first, last_keys(*mask.backward) + 1);
  EXPECT_GT(backward.rbegin()->second, backward.begin()->second / 2);
}

TEST(FcpPipeline, WithoutPipeliningNothingIsInFlightWhileADeviceComputes) {
  Workload workload = many_heads_of({9000, 2500, 700, 600, 300, 5000});
  for (const std::string home : {"none", "contiguous"}) {
    SCOPED_TRACE(home);
    if (home == "contiguous") add_contiguous_home(workload, 8);
    const Arrangement arrangement =
        fcp_strategy().arrange(workload, cluster_of(2, 4),
                               with({{"block", "256"}, {"pipelining", "off"}, {"coalesce", "4"}}));
    for (const auto& direction :
         {arrangement.rounds[0].programs[0].forward, arrangement.rounds[0].programs[0].backward}) {
      std::set<std::int32_t> computing;
      for (const PlacedTile& tile : direction->tiles) computing.insert(tile.stage);
      for (const Transfer& t : direction->transfers) {
        const auto next = computing.lower_bound(t.launch_stage);
        EXPECT_TRUE(next == computing.end() || *next >= t.need_stage);
      }
    }
    static_cast<void>(
        verified_plan(workload, cluster_of(2, 4), with({{"block", "256"}, {"pipelining", "off"}})));
  }
}

// --------------------------------------------------------------------------------- reshuffler

TEST(FcpReshuffler, OverlapsWithTilesThatAreAtHome) {
  Workload workload = many_heads_of({9000, 2500, 700, 600, 300, 5000});
  add_contiguous_home(workload, 8);
  const Arrangement arrangement =
      fcp_strategy().arrange(workload, cluster_of(2, 4), with({{"block", "256"}}));
  const ArrangedRound& round = arrangement.rounds[0];
  for (const auto& direction : {round.programs[0].forward, round.programs[0].backward}) {
    const bool moves_at_start =
        std::any_of(direction->transfers.begin(), direction->transfers.end(),
                    [](const Transfer& t) { return t.kind == Kind::kQ && t.launch_stage == 0; });
    EXPECT_TRUE(moves_at_start);
    std::int64_t at_home = 0;
    for (const PlacedTile& tile : direction->tiles) {
      if (tile.stage > 0) continue;
      EXPECT_EQ(round.owners[tile.q_block.index()], tile.device);
      EXPECT_EQ(round.owners[tile.kv_block.index()], tile.device);
      at_home += tile.pairs;
    }
    EXPECT_GT(at_home, 0);
  }
  static_cast<void>(verified_plan(workload, cluster_of(2, 4), with({{"block", "256"}})));
}

TEST(FcpReshuffler, BeforeMovesEverythingBeforeComputeAndResultsAfterIt) {
  Workload workload = many_heads_of({9000, 2500, 700, 600, 300, 5000});
  add_contiguous_home(workload, 8);
  const Options options = {{"block", "256"}, {"reshuffle", "before"}};
  const Arrangement arrangement = fcp_strategy().arrange(workload, cluster_of(2, 4), with(options));
  const ArrangedDirection& forward = *arrangement.rounds[0].programs[0].forward;
  std::int32_t first = 1 << 20;
  std::int32_t last = 0;
  for (const PlacedTile& tile : forward.tiles) {
    first = std::min(first, tile.stage);
    last = std::max(last, tile.stage);
  }
  for (const Transfer& t : forward.transfers) {
    if (t.kind == Kind::kQ) {
      EXPECT_LE(t.need_stage, first);
    }
    if (t.kind == Kind::kO) {
      EXPECT_GT(t.launch_stage, last);
    }
  }
  static_cast<void>(verified_plan(workload, cluster_of(2, 4), with(options)));
}

TEST(FcpReshuffler, MovesNothingWhenHomesAreWhereItWouldPutBlocks) {
  const Workload anywhere = many_heads_of({9000, 2500, 700, 600, 300, 5000});
  const StrategyRequest request = with({{"block", "256"}});
  const Arrangement free = fcp_strategy().arrange(anywhere, cluster_of(2, 4), request);
  Workload at_home = anywhere;
  std::vector<std::pair<Range, Rank>> ranges;
  for (std::int32_t b = 0; b < free.rounds[0].blocks.num_blocks(); ++b) {
    for (const Range& range : free.rounds[0].blocks.ranges(BlockId{b})) {
      ranges.emplace_back(range, free.rounds[0].owners[static_cast<std::size_t>(b)]);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (const auto& [range, owner] : ranges) at_home.home.push_back({range, owner});
  const Arrangement same = fcp_strategy().arrange(at_home, cluster_of(2, 4), request);
  for (const Transfer& t : same.rounds[0].programs[0].forward->transfers) {
    EXPECT_EQ(t.kind, Kind::kKv);
  }
}

// ------------------------------------------------------------------------------------ options

TEST(FcpUlysses, MovesHeadsInsideTheGroupAndAnAthOfTheKeysBetweenGroups) {
  const AttentionShape shape;  // 32 query heads, 8 KV heads of 128
  const Workload workload = many_heads_of({16384});
  const auto bytes = [&](const std::string& heads) {
    return statistics(verified_plan(workload, cluster_of(2, 4),
                                    with({{"block", "512"}, {"head_parallel", heads}})))
        .forward->bytes_by_kind;
  };
  const auto q = static_cast<std::size_t>(Kind::kQ);
  const auto o = static_cast<std::size_t>(Kind::kO);
  const std::int64_t moved = 16384 * 3 / 4;  // tokens times the share of heads that leave
  EXPECT_EQ(bytes("1")[q], 0);
  EXPECT_EQ(bytes("4")[q], moved * shape.q_heads * shape.head_dim * 2);
  EXPECT_EQ(bytes("4")[o], moved * shape.q_heads * (shape.head_dim * 2 + 4));
}

TEST(FcpUlysses, RefusesHeadsAndNodesItCannotSplit) {
  const Workload workload = many_heads_of({64});
  const auto heads =
      fcp_strategy().unsupported(workload, cluster_of(1, 16), with({{"head_parallel", "16"}}));
  ASSERT_TRUE(heads);
  EXPECT_THAT(*heads, HasSubstr("expected a divisor of 8 KV heads"));
  const auto nodes =
      fcp_strategy().unsupported(workload, cluster_of(4, 2), with({{"head_parallel", "4"}}));
  ASSERT_TRUE(nodes);
  EXPECT_THAT(*nodes, HasSubstr("expected a divisor of 2 devices per node"));
  EXPECT_THROW(static_cast<void>(fcp_strategy().arrange(workload, cluster_of(4, 2),
                                                        with({{"head_parallel", "4"}}))),
               InvalidArgument);
}

TEST(FcpTokenCap, BoundsWhatADeviceOwns) {
  const Workload workload = many_heads_of({5000, 100, 900, 40, 40, 40, 1880});
  for (const std::string heads : {"1", "2"}) {
    for (const std::int64_t cap : {1000, 1100, 2000}) {
      const Plan plan = verified_plan(
          workload, cluster_of(2, 4),
          with(
              {{"block", "300"}, {"token_cap", fmt::format("{}", cap)}, {"head_parallel", heads}}));
      for (std::int32_t r = 0; r < 8; ++r) {
        EXPECT_LE(plan.rounds[0].owned_tokens(Rank{r}), cap);
      }
    }
  }
  const auto reason =
      fcp_strategy().unsupported(workload, cluster_of(2, 4), with({{"token_cap", "999"}}));
  ASSERT_TRUE(reason);
  EXPECT_THAT(*reason, HasSubstr("expected room for 8000 on 8 devices, found 7992"));
}

TEST(FcpBlock, IsSetByItsOptionElseTheBlockSize) {
  const Workload workload = many_heads_of({4000});
  StrategyRequest request;
  EXPECT_EQ(fcp_strategy().arrange(workload, cluster_of(1, 2), request).options.at("block"),
            "4096");
  request.block_size = 500;
  const Arrangement cut = fcp_strategy().arrange(workload, cluster_of(1, 2), request);
  EXPECT_EQ(cut.options.at("block"), "500");
  EXPECT_EQ(cut.rounds[0].blocks.num_blocks(), 8);
  request.options["block"] = "1000";
  EXPECT_EQ(
      fcp_strategy().arrange(workload, cluster_of(1, 2), request).rounds[0].blocks.num_blocks(), 4);
}

TEST(FcpBlock, NamesTheWordItTakesBesideNumbers) {
  try {
    static_cast<void>(fcp_strategy().unsupported(many_heads_of({64}), cluster_of(1, 2),
                                                 with({{"block", "large"}})));
    FAIL() << "accepted block=large";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("block (a number or auto): expected an integer from 1"));
  }
}

// -------------------------------------------------------------------------------- everything

TEST(Fcp, BalancesALongTailOfLengths) {
  Rng rng(11);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < 60; ++i) {
    lengths.push_back(random_between(rng, 1, random_chance(rng, 0.1) ? 20000 : 1500));
  }
  const Plan plan = verified_plan(many_heads_of(lengths), cluster_of(1, 8),
                                  with({{"block", "256"}, {"cost", "pairs"}}));
  EXPECT_LT(statistics(plan).forward->compute_imbalance, 0.02);
}

// The paper's measure: (max - mean) / max.
double imbalance_of(const std::vector<double>& values) {
  const double mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  return 1 - mean / *std::ranges::max_element(values);
}

// Section 6.2 of the paper, at its block of 4096 and its 32768 tokens per device: under 5%. Work
// keeps to that. Bytes, sent and received together, do not; theirs is the bound that holds.
TEST(Fcp, IsUnderTwoPercentImbalanceOfWorkAndSeventeenOfBytesForAnyLongTail) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const auto nodes = static_cast<std::int32_t>(random_between(rng, 2, 8));
    const Cluster cluster = cluster_of(nodes, 8);
    BatchOptions options;
    options.tokens = std::int64_t{32768} * cluster.num_devices();
    options.max_length = std::min<std::int64_t>(options.tokens, 524288);
    options.seed = seed;
    const char* const dataset = seed % 2 == 0 ? "lognormal512k" : "mixture512k";
    const std::vector<std::int64_t> lengths = batches_from_dataset(dataset, options).front();
    const Workload workload = batch_of(lengths);
    const WorkBlocks work =
        distribute(workload, {.num_devices = cluster.num_devices(), .profile = &cluster.attention});
    std::vector<Shard> shards(work.workers.size());
    for (std::size_t b = 0; b < shards.size(); ++b) {
      const BlockId block{static_cast<std::int32_t>(b)};
      const auto ranges = work.blocks.ranges(block);
      shards[b].ranges.assign(ranges.begin(), ranges.end());
      shards[b].tokens = work.blocks.num_tokens(block);
    }
    cost_shards(workload, &cluster.attention, shards);
    ShardTraffic traffic(workload, shards, cluster.num_devices());
    std::vector<double> loads(static_cast<std::size_t>(cluster.num_devices()));
    std::vector<std::int64_t> tokens(loads.size());
    for (std::size_t b = 0; b < shards.size(); ++b) {
      const Rank worker = work.workers[b];
      traffic.place(b, worker.value);
      loads[worker.index()] += static_cast<double>(shards[b].cost);
      tokens[worker.index()] += shards[b].tokens;
    }
    std::vector<double> bytes;
    for (std::int32_t d = 0; d < cluster.num_devices(); ++d) {
      bytes.push_back(static_cast<double>(traffic.sent(d) + traffic.received(d)));
    }
    EXPECT_LT(imbalance_of(loads), 0.02);
    EXPECT_LT(imbalance_of(bytes), 0.17);
    EXPECT_LE(*std::ranges::max_element(tokens), 32768 + 4096);
  }
}

TEST(Fcp, MakesValidPlansForAnyBatchUnderAnyOptions) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    constexpr std::int32_t kNodes[] = {1, 2, 3};
    constexpr std::int32_t kDevices[] = {1, 2, 3, 4, 8};
    const Cluster cluster =
        cluster_of(kNodes[random_between(rng, 0, 2)], kDevices[random_between(rng, 0, 4)]);
    std::vector<MaskUse> masks(static_cast<std::size_t>(random_between(rng, 1, 2)));
    for (std::size_t m = 0; m < masks.size(); ++m) {
      masks[m].name = fmt::format("mask{}", m);
      masks[m].spec = random_mask_spec(rng, kAllRules[random_between(rng, 0, 7)], 200);
    }
    Workload workload = make_workload(random_lengths(rng, 12, 400), {}, masks);
    if (random_chance(rng, 0.3)) add_contiguous_home(workload, cluster.num_devices());
    if (workload.home.empty() && random_chance(rng, 0.5)) {
      for (std::int64_t at = 0; at < workload.num_tokens();) {
        const std::int64_t end = std::min(workload.num_tokens(), at + random_between(rng, 1, 150));
        const auto owner = random_between(rng, 0, cluster.num_devices() - 1);
        workload.home.push_back({{at, end}, Rank{static_cast<std::int32_t>(owner)}});
        at = end;
      }
    }
    const auto pick = [&](std::vector<std::string> values) {
      return values[static_cast<std::size_t>(
          random_between(rng, 0, static_cast<std::int64_t>(values.size()) - 1))];
    };
    StrategyRequest request = with({{"block", pick({"7", "20", "60", "auto"})},
                                    {"coalesce", pick({"1", "2", "16"})},
                                    {"buffers", pick({"1", "2", "3", "7"})},
                                    {"head_parallel", pick({"1", "2", "4"})},
                                    {"pipelining", pick({"on", "on", "off"})},
                                    {"congestion_free", pick({"on", "off"})},
                                    {"cost", pick({"profile", "pairs"})},
                                    {"cut_heavy", pick({"on", "off"})},
                                    {"reshuffle", pick({"overlapped", "before"})}});
    request.backward = random_chance(rng, 0.9);
    if (random_chance(rng, 0.3)) {
      const std::int64_t even =
          (workload.num_tokens() + cluster.num_devices() - 1) / cluster.num_devices();
      request.options["token_cap"] = fmt::format("{}", even + random_between(rng, 0, 40));
    }
    if (fcp_strategy().unsupported(workload, cluster, request)) continue;
    std::string trace = fmt::format("seed {}", seed);
    for (const auto& [key, value] : request.options) trace += fmt::format(" {}={}", key, value);
    SCOPED_TRACE(trace);
    static_cast<void>(verified_plan(workload, cluster, request));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace contextile
