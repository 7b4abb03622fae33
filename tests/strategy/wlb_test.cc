#include "strategy/wlb.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/plan_build.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "strategy/schedule/rank_layout.h"
#include "strategy/shard_cost.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;

Arrangement arranged(const std::string& strategy, const Workload& workload, const Cluster& cluster,
                     const std::map<std::string, std::string>& options) {
  StrategyRequest request;
  request.options = options;
  return find_strategy(strategy).arrange(workload, cluster, request);
}

std::vector<AttentionShard> shards_of(const Workload& workload, TokenLayout layout,
                                      std::int32_t num_ranks) {
  return attention_shards(workload.masks[0].mask, workload.sequences,
                          rank_ranges(layout, workload.sequences, num_ranks));
}

// ------------------------------------------------------------------------------- the originals

void append_merged(Range range, std::vector<Range>& out) {
  if (!out.empty() && out.back().end == range.begin) {
    out.back().end = range.end;
  } else {
    out.push_back(range);
  }
}

// Returns the ranges of the original's per-document sharding. Chunk c has [id, prefix, length] or
// null for each document.
std::vector<std::vector<Range>> per_document_ranges(const json& one, const Workload& workload) {
  const int num_ranks = one["cp"];
  const json& chunks = one["per_doc_chunks"];
  std::vector<std::vector<Range>> ranges(static_cast<std::size_t>(num_ranks));
  for (std::size_t d = 0; d < workload.sequences.size(); ++d) {
    for (int r = 0; r < num_ranks; ++r) {
      for (const int c : {r, 2 * num_ranks - 1 - r}) {
        const json& part = chunks[static_cast<std::size_t>(c)][d];
        if (part.is_null()) continue;
        EXPECT_EQ(part[0].get<std::size_t>(), d);
        const std::int64_t begin = workload.sequences[d].begin + part[1].get<std::int64_t>();
        append_merged({begin, begin + part[2].get<std::int64_t>()},
                      ranges[static_cast<std::size_t>(r)]);
      }
    }
  }
  return ranges;
}

std::vector<std::int64_t> pairs_of_ranks(const std::vector<AttentionShard>& shards,
                                         std::size_t num_ranks) {
  std::vector<std::int64_t> pairs(num_ranks);
  for (const AttentionShard& shard : shards) pairs[shard.rank.index()] += shard.pairs;
  return pairs;
}

// Returns query lengths, key lengths and the first key of the shards inside a chunk of the packed
// batch.
json pieces_of(const std::vector<AttentionShard>& shards, Range chunk) {
  json q = json::array();
  json k = json::array();
  std::int64_t k_offset = -1;
  for (const AttentionShard& shard : shards) {
    const Range piece = intersect(shard.tokens, chunk);
    if (piece.empty()) continue;
    // A rank's two chunks may touch, in which case its shard extends beyond this chunk.
    const std::int64_t first_key = shard.tokens.end - shard.kv_tokens;
    q.push_back(piece.size());
    k.push_back(piece.end - first_key);
    if (k_offset < 0) k_offset = first_key;
  }
  return {{"q", q}, {"k", k}, {"k_offset", k_offset}};
}

TEST(WlbSharding, IsTheOriginals) {
  const std::string path = std::string(CONTEXTILE_GOLDEN) + "/wlb_cp_sharding.json";
  std::ifstream file(path);
  if (!file) GTEST_SKIP() << path << " is missing";
  const json vectors = json::parse(file);
  ASSERT_GE(vectors["cases"].size(), 1U);
  for (const json& one : vectors["cases"]) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const std::int32_t num_ranks = one["cp"];
    const auto ranks = static_cast<std::size_t>(num_ranks);
    const Workload workload = batch_of(one["docs"].get<std::vector<std::int64_t>>());
    EXPECT_EQ(rank_ranges(TokenLayout::kPerDocument, workload.sequences, num_ranks),
              per_document_ranges(one, workload));
    EXPECT_EQ(pairs_of_ranks(shards_of(workload, TokenLayout::kPerDocument, num_ranks), ranks),
              one["pairs_per_rank_perdoc"].get<std::vector<std::int64_t>>());

    const auto shards = shards_of(workload, TokenLayout::kPerSequence, num_ranks);
    EXPECT_EQ(pairs_of_ranks(shards, ranks),
              one["pairs_per_rank_perseq"].get<std::vector<std::int64_t>>());
    const std::int64_t chunk = workload.num_tokens() / (2 * num_ranks);
    for (std::int32_t r = 0; r < num_ranks; ++r) {
      for (const std::size_t half : {0, 1}) {
        SCOPED_TRACE(fmt::format("rank {} half {}", r, half));
        const std::int64_t c = half == 0 ? r : 2 * num_ranks - 1 - r;
        const json& expected = one["per_seq"][static_cast<std::size_t>(r)][half];
        EXPECT_EQ(pieces_of(shards, {c * chunk, (c + 1) * chunk}), expected);
      }
    }
  }
}

// ------------------------------------------------------------------------------- the estimate

TEST(AttentionShards, CountPairsAndDistinctKeysOfEveryRun) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    MaskUse use;
    use.spec = random_mask_spec(rng, 60);
    const Workload workload = make_workload(random_lengths(rng, 5, 60), {}, {&use, 1});
    const Mask& mask = workload.masks[0].mask;
    const auto num_ranks = static_cast<std::int32_t>(random_between(rng, 1, 5));
    const TokenLayout layout =
        random_chance(rng, 0.5) ? TokenLayout::kPerDocument : TokenLayout::kPerSequence;
    const auto shards = shards_of(workload, layout, num_ranks);
    std::int64_t next = 0;
    for (const AttentionShard& shard : shards) {
      EXPECT_EQ(shard.tokens.begin, next);
      next = shard.tokens.end;
      std::int64_t pairs = 0;
      std::set<std::int64_t> keys;
      for (std::int64_t q = shard.tokens.begin; q < shard.tokens.end; ++q) {
        for (const Band& band : mask.bands) {
          for (std::int64_t k = band.k.begin; k < band.k.end; ++k) {
            if (!band.q.contains(q) || k - q < band.lo || k - q > band.hi) continue;
            ++pairs;
            keys.insert(k);
          }
        }
      }
      EXPECT_EQ(shard.pairs, pairs);
      EXPECT_EQ(shard.kv_tokens, static_cast<std::int64_t>(keys.size()));
    }
    EXPECT_EQ(next, workload.num_tokens());
  }
}

TEST(AttentionShards, EndWithTheirSequence) {
  const Workload workload = batch_of({3, 5});
  const std::vector<std::vector<Range>> ranges = {{{0, 8}}};
  const auto shards = attention_shards(workload.masks[0].mask, workload.sequences, ranges);
  ASSERT_EQ(shards.size(), 2U);
  EXPECT_EQ(shards[0].tokens, (Range{0, 3}));
  EXPECT_EQ(shards[1].tokens, (Range{3, 8}));
}

TEST(AttentionEstimate, IsTheSlowestRanksCallAndRectangles) {
  AttentionShape shape;
  shape.q_heads = shape.kv_heads = 1;
  shape.head_dim = shape.value_dim = 125;  // 500 FLOPs per pair
  Cluster cluster = cluster_of(1, 3);
  cluster.attention_tflops = 2;
  cluster.attention = {.q_rows = {1}, .kv_rows = {1}, .forward = {0.5}, .backward = {0.5}};
  cluster.attention.call_us = 20;
  cluster.attention.kernel_tile_rows = 128;
  // Rank 0: 100 rows, padded to 128, of 100 keys each on average, plus 64 for the edge. Rank 1: 256
  // rows without padding that attend all of 500 keys. Rank 2 has nothing to do. At 1 TFLOP/s, 10^6
  // FLOPs take 1 us.
  const std::vector<AttentionShard> shards = {{Rank{0}, {0, 100}, 224, 10'000},
                                              {Rank{1}, {100, 356}, 500, 128'000},
                                              {Rank{2}, {356, 360}, 0, 0}};
  EXPECT_DOUBLE_EQ(estimate_attention_us({shards.data(), 1}, shape, cluster),
                   20 + 128 * 164 * 500 / 1e6);
  EXPECT_DOUBLE_EQ(estimate_attention_us(shards, shape, cluster), 20 + 128'000 * 500 / 1e6);
  EXPECT_EQ(estimate_attention_us({&shards[2], 1}, shape, cluster), 0);
  cluster.attention.kernel_tile_rows = 0;  // only attended pairs cost time
  EXPECT_DOUBLE_EQ(estimate_attention_us({shards.data(), 1}, shape, cluster),
                   20 + 10'000 * 500 / 1e6);
}

// ------------------------------------------------------------------------------- the strategy

TEST(Wlb, CutsManyShortDocumentsPerSequence) {
  // 512 documents of 256 tokens in slivers of 16 fill an eighth of a tile of 128 queries.
  const Workload workload = batch_of(std::vector<std::int64_t>(512, 256));
  EXPECT_EQ(arranged("wlb", workload, cluster_of(1, 8), {}).options.at("sharding"), "per_sequence");
}

TEST(Wlb, CutsALongDocumentAmongShortOnesPerDocument) {
  std::vector<std::int64_t> lengths(64, 512);
  lengths.insert(lengths.begin(), 65536);
  const Workload workload = batch_of(lengths);
  EXPECT_EQ(arranged("wlb", workload, cluster_of(1, 8), {}).options.at("sharding"), "per_document");
}

TEST(Wlb, ChoosesPerDocumentWhenBothAreTheSame) {
  const Workload workload = batch_of({4096});
  EXPECT_EQ(arranged("wlb", workload, cluster_of(1, 4), {}).options.at("sharding"), "per_document");
}

TEST(Wlb, TakesTheShardingWithTheLowerEstimateOverAllLayers) {
  int chosen_per_document = 0;
  constexpr int kTrials = 60;
  for (std::uint64_t seed = 1; seed <= kTrials; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    std::vector<MaskUse> masks(2);
    masks[0] = {.name = "a", .layers = 3, .spec = random_mask_spec(rng, 2000)};
    masks[1] = {.name = "b", .layers = 1, .spec = random_mask_spec(rng, 2000)};
    const Workload workload = make_workload(random_lengths(rng, 12, 4000), {}, masks);
    const Cluster cluster = cluster_of(1, static_cast<std::int32_t>(random_between(rng, 2, 9)));
    const auto estimate = [&](TokenLayout layout) {
      double total = 0;
      for (const NamedMask& mask : workload.masks) {
        const auto shards =
            attention_shards(mask.mask, workload.sequences,
                             rank_ranges(layout, workload.sequences, cluster.num_devices()));
        total += mask.layers * estimate_attention_us(shards, workload.shape, cluster);
      }
      return total;
    };
    const bool per_document =
        estimate(TokenLayout::kPerDocument) <= estimate(TokenLayout::kPerSequence);
    chosen_per_document += per_document ? 1 : 0;
    EXPECT_EQ(arranged("wlb", workload, cluster, {}).options.at("sharding"),
              per_document ? "per_document" : "per_sequence");
  }
  EXPECT_GT(chosen_per_document, 5);  // both occur
  EXPECT_LT(chosen_per_document, kTrials - 5);
}

TEST(Wlb, RunsAsTheAllGatherOfItsSharding) {
  const Workload workload = batch_of({700, 90, 1300, 33});
  for (const std::string sharding : {"per_document", "per_sequence"}) {
    for (const std::string algorithm : {"ring", "direct"}) {
      SCOPED_TRACE(sharding + " " + algorithm);
      Arrangement wlb = arranged("wlb", workload, cluster_of(1, 4),
                                 {{"sharding", sharding}, {"algorithm", algorithm}});
      EXPECT_EQ(wlb.options.at("sharding"), sharding);
      const Arrangement gather = arranged("all_gather", workload, cluster_of(1, 4),
                                          {{"layout", sharding}, {"algorithm", algorithm}});
      wlb.strategy = gather.strategy;
      wlb.options = gather.options;
      EXPECT_EQ(build_plan(workload, cluster_of(1, 4), wlb).digest,
                build_plan(workload, cluster_of(1, 4), gather).digest);
    }
  }
}

TEST(Wlb, RefusesUnknownShardings) {
  try {
    static_cast<void>(arranged("wlb", batch_of({8}), cluster_of(1, 2), {{"sharding", "best"}}));
    FAIL() << "expected InvalidArgument";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("adaptive, per_document, per_sequence"));
  }
}

}  // namespace
}  // namespace contextile
