#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ranges.h"
#include "base/rng.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategies.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/verify.h"
#include "strategy/magi/casts.h"
#include "strategy/magi/dispatch.h"
#include "strategy/magi/overlap_degree.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

Cluster cluster_of(std::int32_t nodes, std::int32_t devices_per_node) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = devices_per_node;
  return cluster;
}

Arrangement arrange(const Workload& workload, const Cluster& cluster, const MagiOptions& options) {
  StrategyRequest request;
  request.options = choice_of(options).options;
  return find_strategy("magi").arrange(workload, cluster, request);
}

Plan plan_of(const Workload& workload, const Cluster& cluster, const MagiOptions& options) {
  return build_plan(workload, cluster, arrange(workload, cluster, options));
}

std::vector<ChunkWork> chunks_of_areas(const std::vector<std::int64_t>& areas) {
  std::vector<ChunkWork> chunks;
  for (const std::int64_t area : areas) chunks.push_back({area, {}});
  return chunks;
}

std::vector<std::int32_t> dispatched(const std::vector<ChunkWork>& chunks, std::int32_t num_ranks,
                                     MagiDispatch algorithm, double top_p = 0) {
  std::vector<std::int32_t> ranks;
  for (const Rank rank : dispatch_chunks(chunks, num_ranks, algorithm, top_p)) {
    ranks.push_back(rank.value);
  }
  return ranks;
}

using Ranks = std::vector<std::int32_t>;

std::int64_t largest_load(const std::vector<std::int64_t>& areas, const Ranks& ranks) {
  std::map<std::int32_t, std::int64_t> loads;
  std::int64_t largest = 0;
  for (std::size_t c = 0; c < areas.size(); ++c) {
    largest = std::max(largest, loads[ranks[c]] += areas[c]);
  }
  return largest;
}

TEST(MagiDispatchTest, AChunkGivesEveryRankEightUnlessLessIsRequested) {
  EXPECT_EQ(magi_chunk_tokens(131072, 32, 0), 512);
  EXPECT_EQ(magi_chunk_tokens(131072, 32, 128), 128);
  EXPECT_EQ(magi_chunk_tokens(4096, 16, 512), 32);
  EXPECT_EQ(magi_chunk_tokens(4097, 16, 512), 33);
  EXPECT_EQ(magi_chunk_tokens(3, 16, 0), 1);
}

TEST(MagiDispatchTest, MinHeapTakesLaterOnesOfEqualChunksFirstAndFillsPlaces) {
  EXPECT_EQ(dispatched(chunks_of_areas({5, 5, 5, 5}), 2, MagiDispatch::kMinHeap),
            (Ranks{1, 0, 1, 0}));
  // Rank 1 has less work throughout, but no third place.
  EXPECT_EQ(dispatched(chunks_of_areas({1, 1, 2, 90}), 2, MagiDispatch::kMinHeap),
            (Ranks{0, 1, 1, 0}));
}

TEST(MagiDispatchTest, ExactAlgorithmsFindWhatNoGreedyOneDoes) {
  // By area to the least loaded rank: 3 3 and 2 2 2 become 7 and 5.
  const std::vector<std::int64_t> areas = {3, 3, 2, 2, 2};
  EXPECT_EQ(largest_load(areas, dispatched(chunks_of_areas(areas), 2, MagiDispatch::kMinHeap)), 7);
  EXPECT_EQ(largest_load(areas, dispatched(chunks_of_areas(areas), 2, MagiDispatch::kBinarySearch)),
            6);
  EXPECT_EQ(largest_load(areas, dispatched(chunks_of_areas(areas), 2, MagiDispatch::kBacktracking)),
            6);
  // Equal counts cost something: 9 with one of 1 instead of 9 alone.
  const std::vector<std::int64_t> uneven = {9, 1, 1, 1};
  EXPECT_EQ(
      largest_load(uneven, dispatched(chunks_of_areas(uneven), 2, MagiDispatch::kBinarySearch)), 9);
  EXPECT_EQ(
      largest_load(uneven, dispatched(chunks_of_areas(uneven), 2, MagiDispatch::kBacktracking)),
      10);
}

TEST(MagiDispatchTest, ExactAlgorithmsAreNeverWorseAndEndWithManyChunks) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const auto ranks = static_cast<std::int32_t>(random_between(rng, 1, 40));
    std::vector<std::int64_t> areas(static_cast<std::size_t>(random_between(rng, 1, 320)));
    for (std::int64_t& area : areas) area = random_between(rng, 0, 1'000'000);
    const std::vector<ChunkWork> chunks = chunks_of_areas(areas);
    const Ranks greedy = dispatched(chunks, ranks, MagiDispatch::kMinHeap);
    const Ranks equal = dispatched(chunks, ranks, MagiDispatch::kBacktracking);
    const Ranks any = dispatched(chunks, ranks, MagiDispatch::kBinarySearch);
    EXPECT_LE(largest_load(areas, equal), largest_load(areas, greedy));
    EXPECT_LE(largest_load(areas, any), largest_load(areas, greedy));
    std::map<std::int32_t, std::int64_t> counts;
    for (const std::int32_t rank : equal) ++counts[rank];
    for (const auto& [rank, count] : counts) {
      EXPECT_LE(count, (std::ssize(areas) + ranks - 1) / ranks);
    }
  }
}

TEST(MagiDispatchTest, SequentialGivesFirstRanksWhatDoesNotComeOutEven) {
  EXPECT_EQ(dispatched(chunks_of_areas(std::vector<std::int64_t>(7)), 3, MagiDispatch::kSequential),
            (Ranks{0, 0, 0, 1, 1, 2, 2}));
}

TEST(MagiDispatchTest, ToppHeapKeepsChunksThatShareKeysTogether) {
  std::vector<ChunkWork> chunks = chunks_of_areas({8, 8, 8, 8});
  chunks[0].keys = chunks[3].keys = {{0, 100}};
  chunks[1].keys = chunks[2].keys = {{100, 200}};
  EXPECT_EQ(dispatched(chunks, 2, MagiDispatch::kToppHeap, 0), (Ranks{0, 1, 0, 1}));
  EXPECT_EQ(dispatched(chunks, 2, MagiDispatch::kToppHeap, 1), (Ranks{0, 1, 1, 0}));
}

TEST(MagiDispatchTest, AffinityMovesFewerRowsOfManyDocuments) {
  Rng rng(3);
  const Workload workload = make_workload(random_lengths(rng, 40, 6000), {}, MaskUse{});
  const auto moved = [&](const MagiOptions& options) {
    return statistics(plan_of(workload, cluster_of(1, 8), options)).forward->total_bytes();
  };
  EXPECT_LT(moved({.algorithm = MagiDispatch::kToppHeap, .top_p = 0.5}), 0.8 * moved({}));
  EXPECT_LT(moved({.algorithm = MagiDispatch::kSequential}), 0.5 * moved({}));
}

TEST(MagiCasts, KeysToFetchAreThoseNotHeld) {
  const std::vector<Range> needed = {{0, 10}, {20, 30}, {40, 41}};
  EXPECT_EQ(keys_to_fetch(needed, {}), needed);
  EXPECT_EQ(keys_to_fetch(needed, std::vector<Range>{{2, 4}, {9, 25}, {27, 28}, {40, 50}}),
            (std::vector<Range>{{0, 2}, {4, 9}, {25, 27}, {28, 30}}));
  EXPECT_TRUE(keys_to_fetch(needed, std::vector<Range>{{0, 100}}).empty());
}

TEST(MagiCasts, TheFirstStageHasOneElementLess) {
  const std::vector<Range> keys = {{100, 104}, {200, 203}};  // elements of 2, 2, 2 and 1
  EXPECT_EQ(cut_into_stages(keys, {2, 2, 64}),
            (std::vector<StagedKeys>{{{100, 104}, 0}, {{200, 203}, 1}}));
  EXPECT_EQ(cut_into_stages(keys, {4, 2, 64}),
            (std::vector<StagedKeys>{
                {{100, 102}, 0}, {{102, 104}, 1}, {{200, 202}, 2}, {{202, 203}, 3}}));
}

TEST(MagiCasts, FewElementsLeaveLastStagesEmptyAndManyBecomeLarger) {
  const std::vector<Range> keys = {{0, 1000}};
  EXPECT_EQ(cut_into_stages(keys, {5, 512, 64}),
            (std::vector<StagedKeys>{{{0, 512}, 0}, {{512, 1000}, 1}}));
  EXPECT_EQ(cut_into_stages(keys, {2, 1, 4}),
            (std::vector<StagedKeys>{{{0, 500}, 0}, {{500, 1000}, 1}}));
  EXPECT_EQ(cut_into_stages(keys, {1, 1, 64}), (std::vector<StagedKeys>{{{0, 1000}, 0}}));
  EXPECT_TRUE(cut_into_stages({}, {3, 512, 64}).empty());
}

TEST(MagiCasts, StagesPartitionAnyKeysInOrder) {
  Rng rng(11);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<Range> keys;
    std::int64_t at = 0;
    std::int64_t total = 0;
    for (std::int64_t n = random_between(rng, 1, 12); n > 0; --n) {
      at += random_between(rng, 1, 50);
      keys.push_back({at, at + random_between(rng, 1, 900)});
      at = keys.back().end;
      total += keys.back().size();
    }
    const StageRule rule{static_cast<std::int32_t>(random_between(rng, 1, 9)),
                         random_between(rng, 1, 700), random_between(rng, 1, 64)};
    const std::vector<StagedKeys> staged = cut_into_stages(keys, rule);
    std::vector<Range> again;
    std::map<std::int32_t, std::int64_t> tokens;
    for (std::size_t i = 0; i < staged.size(); ++i) {
      EXPECT_GE(staged[i].stage, i > 0 ? staged[i - 1].stage : 0);
      again.push_back(staged[i].tokens);
      tokens[staged[i].stage] += staged[i].tokens.size();
    }
    EXPECT_EQ(merged(again), merged(keys));
    EXPECT_EQ(tokens.rbegin()->first + 1, std::ssize(tokens));  // only the last stages may be empty
    EXPECT_LT(tokens.rbegin()->first, rule.stages);
    const std::int64_t element =
        std::max(rule.element_tokens, (total + rule.max_elements - 1) / rule.max_elements);
    for (const auto& [stage, size] : tokens) {
      EXPECT_LE(size, total / std::ssize(tokens) + 2 * element) << "stage " << stage;
    }
  }
}

// Number of times that a rank receives each row of K and V: [rank][token].
using Copies = std::vector<std::vector<int>>;

// Calls visit(token) for every token of a block.
template <typename Visit>
void for_each_token(const Blocking& blocks, BlockId block, const Visit& visit) {
  for (const Range& range : blocks.ranges(block)) {
    for (std::int64_t t = range.begin; t < range.end; ++t) visit(static_cast<std::size_t>(t));
  }
}

// Returns 1 for every row that the rank's queries attend and another rank owns.
Copies needed_copies(const ArrangedRound& round, std::size_t mask, const Copies& none) {
  std::vector<Rank> owner_of(none.front().size());
  std::vector<Rank> worker_of(none.front().size());
  for (std::int32_t b = 0; b < round.blocks.num_blocks(); ++b) {
    for_each_token(round.blocks, BlockId{b},
                   [&](auto t) { owner_of[t] = round.owners[BlockId{b}.index()]; });
  }
  for (const PlacedTile& tile : round.programs[mask].forward->tiles) {
    for_each_token(round.blocks, tile.q_block, [&](auto t) { worker_of[t] = tile.device; });
  }
  Copies needed = none;
  for (const Band& band : round.masks[mask].bands) {
    for (std::int64_t q = band.q.begin; q < band.q.end; ++q) {
      const Rank worker = worker_of[static_cast<std::size_t>(q)];
      const std::int64_t end = std::min(band.k.end, q + band.hi + 1);
      for (std::int64_t k = std::max(band.k.begin, q + band.lo); k < end; ++k) {
        const auto key = static_cast<std::size_t>(k);
        if (owner_of[key] != worker) needed[worker.index()][key] = 1;
      }
    }
  }
  return needed;
}

// Counts received rows, except those that a relay only passes on.
Copies received_copies(const ArrangedRound& round, std::size_t mask, const Copies& none) {
  const ArrangedDirection& forward = *round.programs[mask].forward;
  std::set<std::pair<Rank, BlockId>> attended;
  for (const PlacedTile& tile : forward.tiles) attended.insert({tile.device, tile.kv_block});
  Copies received = none;
  for (const Transfer& t : forward.transfers) {
    if (t.kind != Kind::kKv || !attended.contains({t.dst, t.block})) continue;
    for_each_token(round.blocks, t.block, [&](auto k) { ++received[t.dst.index()][k]; });
  }
  return received;
}

MagiOptions random_options(Rng& rng) {
  MagiOptions options;
  if (random_chance(rng, 0.5)) options.chunk = random_between(rng, 1, 100);
  options.algorithm = static_cast<MagiDispatch>(random_between(rng, 0, 4));
  options.top_p = rng.uniform();
  options.stages = static_cast<std::int32_t>(random_between(rng, 0, 5));
  options.keys_per_element = random_between(rng, 1, 60);
  options.launch = static_cast<CastLaunch>(random_between(rng, 0, 1));
  options.hierarchical = random_chance(rng, 0.5);
  return options;
}

TEST(Magi, MovesExactlyTheNeededRowsOfAnyMaskWithAnyOptions) {
  std::int64_t moved = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    std::vector<MaskUse> masks(static_cast<std::size_t>(random_between(rng, 1, 2)));
    for (std::size_t m = 0; m < masks.size(); ++m) {
      masks[m].name = fmt::format("{}", m);
      masks[m].spec = random_mask_spec(rng, 300);
    }
    Workload workload = make_workload(random_lengths(rng, 8, 400), {}, masks);
    const Cluster cluster = cluster_of(static_cast<std::int32_t>(random_between(rng, 1, 3)),
                                       static_cast<std::int32_t>(random_between(rng, 1, 4)));
    if (random_chance(rng, 0.3)) {
      for (std::int64_t at = 0; at < workload.num_tokens();) {
        const std::int64_t end = std::min(workload.num_tokens(), at + random_between(rng, 1, 200));
        const auto owner = random_between(rng, 0, cluster.num_devices() - 1);
        workload.home.push_back({{at, end}, Rank{static_cast<std::int32_t>(owner)}});
        at = end;
      }
    }
    const MagiOptions options = random_options(rng);
    const Arrangement arrangement = arrange(workload, cluster, options);
    const VerifyReport report = verify(build_plan(workload, cluster, arrangement));
    ASSERT_TRUE(report.ok()) << report.violations.front();
    const ArrangedRound& round = arrangement.rounds[0];
    const Copies none(static_cast<std::size_t>(cluster.num_devices()),
                      std::vector<int>(static_cast<std::size_t>(workload.num_tokens())));
    for (std::size_t m = 0; m < masks.size(); ++m) {
      const Copies received = received_copies(round, m, none);
      EXPECT_EQ(received, needed_copies(round, m, none));
      for (const auto& of_rank : received) moved += std::count(of_rank.begin(), of_rank.end(), 1);
    }
  }
  EXPECT_GE(moved, 100000);
}

std::int32_t stages_of(const Workload& workload, const Cluster& cluster, MagiOptions options) {
  std::int32_t last = 0;
  const Arrangement arrangement = arrange(workload, cluster, options);
  for (const PlacedTile& tile : arrangement.rounds[0].programs[0].forward->tiles) {
    last = std::max(last, tile.stage);
  }
  return last;
}

TEST(Magi, ChoosesTheNumberOfStagesByEstimatedTime) {
  const Workload workload = make_workload(std::vector<std::int64_t>{65536}, {}, MaskUse{});
  const auto chosen = [&](double gbytes_per_s) {
    Cluster cluster = cluster_of(8, 1);
    cluster.inter_gbytes_per_s_per_node = gbytes_per_s;
    const std::int32_t stages = stages_of(workload, cluster, {.stages = 0});
    double best_us = 0;
    for (const std::int32_t n : {stages, 1, 2, 3, 4, 5, 6, 7, 8}) {
      const double us =
          overlapped_us(arrange(workload, cluster, {.stages = n}).rounds[0], workload, cluster);
      if (best_us == 0) best_us = us;  // of the chosen number
      EXPECT_LE(0.995 * best_us, us) << n << " stages instead of " << stages;
    }
    return stages;
  };
  EXPECT_EQ(chosen(4000), 1);  // local tiles hide everything
  EXPECT_GE(chosen(20), 2);
}

TEST(Magi, BalancesAreasOfCausalSequencesHoweverShort) {
  for (const std::int64_t tokens : {2048, 4096, 32768, 131072}) {
    const Workload workload = make_workload(std::vector<std::int64_t>{tokens}, {}, MaskUse{});
    EXPECT_LT(statistics(plan_of(workload, cluster_of(2, 8), {})).forward->compute_imbalance, 0.02)
        << tokens;
  }
}

TEST(Magi, GivesEveryRankEquallyManyChunks) {
  const Workload workload =
      make_workload(std::vector<std::int64_t>{5000, 300, 2900}, {}, MaskUse{});
  const Plan plan = plan_of(workload, cluster_of(1, 8), {.chunk = 100});
  EXPECT_LE(statistics(plan).token_imbalance, 11 * 100 * 8 / 8200.0 - 1);  // ceil(82 / 8) chunks
}

// A chunk is cut where windows of later chunks begin, which is once or twice, however long the
// document.
TEST(Magi, CutsFewBlocksOfLongDocuments) {
  for (const char* mask : {"causal", "sliding_window:4096", "lambda:64,4096",
                           "causal_blockwise:256,2,1", "shared_question:0.2,4"}) {
    const Workload workload =
        make_workload(std::vector<std::int64_t>{1 << 20}, {}, parse_mask_use(mask));
    const Arrangement arrangement = arrange(workload, cluster_of(8, 8), {});
    EXPECT_LE(arrangement.rounds[0].blocks.num_blocks(), 2 * 8 * 64) << mask;
  }
}

// Pages of a cache are dealt to the ranks round-robin. A block has the tokens that one of them
// holds of a piece of a chunk.
TEST(Magi, CutsNoBlocksForInterleavedHomes) {
  for (const std::int64_t page : {1, 16}) {
    for (const char* mask : {"causal", "sliding_window:1000", "lambda:64,500"}) {
      Workload workload = make_workload(std::vector<std::int64_t>{8192}, {}, parse_mask_use(mask));
      for (std::int64_t at = 0; at < 8192; at += page) {
        workload.home.push_back({{at, at + page}, Rank{static_cast<std::int32_t>(at / page % 4)}});
      }
      const Arrangement arrangement = arrange(workload, cluster_of(1, 4), {});
      // Each of 32 chunks has two pieces, one chunk has a third where the sink ends, and there are
      // four owners.
      EXPECT_LE(arrangement.rounds[0].blocks.num_blocks(), (2 * 32 + 1) * 4) << mask;
    }
  }
}

TEST(Magi, RelaysCrossEachNodeBoundaryOnce) {
  const Workload workload = make_workload(std::vector<std::int64_t>{65536}, {}, MaskUse{});
  const Cluster cluster = cluster_of(2, 8);
  for (const std::int32_t stages : {1, 4}) {
    const Arrangement arrangement =
        arrange(workload, cluster, {.stages = stages, .hierarchical = true});
    const ArrangedRound& round = arrangement.rounds[0];
    std::set<BlockId> crossed;  // there are two nodes, so each block crosses at most one boundary
    std::int64_t rows = 0;
    for (const Transfer& t : round.programs[0].forward->transfers) {
      if (t.src.value / 8 == t.dst.value / 8) continue;
      EXPECT_EQ(t.src.value % 8, t.dst.value % 8);
      EXPECT_TRUE(crossed.insert(t.block).second);
      rows += round.blocks.num_tokens(t.block);
    }
    EXPECT_LE(rows, workload.num_tokens());
    std::map<BlockId, int> back;  // gradients, added up on the relay, once per stage
    for (const Transfer& t : round.programs[0].backward->transfers) {
      if (t.kind == Kind::kDkv && t.src.value / 8 != t.dst.value / 8) ++back[t.block];
    }
    EXPECT_EQ(back.size(), crossed.size());
    for (const auto& [block, times] : back) EXPECT_LE(times, stages);
    EXPECT_GE(rows, workload.num_tokens() * 9 / 10);  // nearly every row is needed on both nodes
  }
}

TEST(Magi, LaunchesTransfersOneStageAheadOrAllAtOnce) {
  const Workload workload = make_workload(std::vector<std::int64_t>{65536}, {}, MaskUse{});
  for (const CastLaunch launch : {CastLaunch::kNext, CastLaunch::kAll}) {
    const Arrangement arrangement =
        arrange(workload, cluster_of(1, 8), {.stages = 3, .launch = launch});
    std::set<std::int32_t> needed;
    for (const Transfer& t : arrangement.rounds[0].programs[0].forward->transfers) {
      needed.insert(t.need_stage);
      EXPECT_EQ(t.launch_stage, launch == CastLaunch::kAll ? 0 : t.need_stage - 1);
    }
    EXPECT_EQ(needed, (std::set<std::int32_t>{1, 2, 3}));
  }
}

TEST(Magi, SendsGradientsOfKeysInTheActivationsDtype) {
  const Workload workload = make_workload(std::vector<std::int64_t>{4096}, {}, MaskUse{});
  const Arrangement arrangement = arrange(workload, cluster_of(1, 8), {});
  EXPECT_EQ(arrangement.partial_wire, Dtype::kBf16);
  EXPECT_EQ(arrangement.options.at("chunk"), "64");
}

}  // namespace
}  // namespace contextile
