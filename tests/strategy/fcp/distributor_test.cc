#include "strategy/fcp/distributor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/workload.h"
#include "support/batches.h"

namespace contextile {
namespace {

using testing::ElementsAre;

TEST(FcpDistributor, PacksShortDocumentsFirstFitByLengthAndCutsLongOnes) {
  // Documents 7, 3, 25, 4, 6, 2 with blocks of 10: 25 is cut into 10 + 10 + 5. The others come by
  // length: 7 opens a composite, 6 another, 4 fits the second, 3 the first, and 2 opens a third.
  const std::vector<Shard> shards = shard_documents(batch_of({7, 3, 25, 4, 6, 2}), 10);
  ASSERT_EQ(shards.size(), 6U);
  EXPECT_THAT(shards[0].ranges, ElementsAre(Range{10, 20}));
  EXPECT_THAT(shards[1].ranges, ElementsAre(Range{20, 30}));
  EXPECT_THAT(shards[2].ranges, ElementsAre(Range{30, 35}));
  EXPECT_THAT(shards[3].ranges, ElementsAre(Range{0, 7}, Range{7, 10}));
  EXPECT_THAT(shards[4].ranges, ElementsAre(Range{35, 39}, Range{39, 45}));
  EXPECT_THAT(shards[5].ranges, ElementsAre(Range{45, 47}));
  EXPECT_EQ(shards[0].cost, 55);
  EXPECT_EQ(shards[1].cost, 155);
  EXPECT_EQ(shards[2].cost, 5 * 20 + 15);
  EXPECT_EQ(shards[3].cost, 28 + 6);
  EXPECT_EQ(shards[3].tokens, 10);
  EXPECT_EQ(shards[0].document, 2);
  EXPECT_EQ(shards[3].document, -1);
}

TEST(FcpDistributor, PairsBlocksFromBothEndsOfADocument) {
  // A causal document of 5 blocks of 10, and one of 2 blocks: pairs (0, 4), (1, 3), the middle
  // alone, and (5, 6). Costs are 55, 155, 255, 355, 455, then 55, 155. The mean of 3 is 495, so (0,
  // 4) and (1, 3) at 510 are too heavy.
  const std::vector<Shard> shards = shard_documents(batch_of({50, 20}), 10);
  const auto members = [](const std::vector<ShardUnit>& units) {
    std::vector<std::vector<std::size_t>> result;
    for (const ShardUnit& unit : units) result.push_back(unit.shards);
    return result;
  };
  using Members = std::vector<std::size_t>;
  EXPECT_THAT(members(pair_shards(shards, 2)),
              ElementsAre(Members{0, 4}, Members{1, 3}, Members{2}, Members{5, 6}));
  EXPECT_THAT(members(pair_shards(shards, 3)), ElementsAre(Members{0}, Members{4}, Members{1},
                                                           Members{3}, Members{2}, Members{5, 6}));
}

TEST(FcpDistributor, GivesTheHeaviestUnitToTheLeastLoadedPosition) {
  // Units by cost on 2 positions of 4 slots: (0, 4) with 510 → 0; (1, 3) with 510 → 1; 2 with 255 →
  // 0 (tie); (5, 6) with 210 → 1. Loads are 765 and 720.
  const std::vector<Shard> shards = shard_documents(batch_of({50, 20}), 10);
  const std::vector<PlacedShard> placed =
      place_shards(shards, pair_shards(shards, 2), 2, PlacementLimit{});
  std::vector<std::int32_t> positions;
  std::map<std::int32_t, std::int64_t> load;
  for (const PlacedShard& shard : placed) {
    positions.push_back(shard.position);
    load[shard.position] += shard.shard.cost;
  }
  EXPECT_THAT(positions, ElementsAre(0, 1, 0, 1, 0, 1, 1));
  EXPECT_EQ(load[0], 765);
  EXPECT_EQ(load[1], 720);
}

TEST(FcpDistributor, TakesAPairApartWhenNoPositionHasTwoSlots) {
  // 5 blocks on 3 positions: 2 slots each. The three documents of one block go first, one to each
  // position. The pair of the last document then finds only single slots.
  std::vector<Shard> shards(5);
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const auto at = static_cast<std::int64_t>(10 * s);
    shards[s] = {{{at, at + 10}},
                 10,
                 s < 3 ? 100 : 2,
                 static_cast<std::int64_t>(std::min(s, std::size_t{3}))};
  }
  const std::vector<ShardUnit> units = {{{0}, 100}, {{1}, 100}, {{2}, 100}, {{3, 4}, 4}};
  const std::vector<PlacedShard> placed = place_shards(shards, units, 3, PlacementLimit{});
  ASSERT_EQ(placed.size(), 5U);
  EXPECT_EQ(placed[3].position, 0);
  EXPECT_EQ(placed[4].position, 1);
}

TEST(FcpDistributor, TakesAPairApartThatWouldOverloadItsPosition) {
  // Three pairs of 10 + 6 on two positions with mean 24: a second pair would make 32, its shards
  // 26.
  std::vector<Shard> shards(6);
  std::vector<ShardUnit> units;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const auto at = static_cast<std::int64_t>(10 * s);
    shards[s] = {{{at, at + 10}}, 10, s % 2 == 0 ? 10 : 6, static_cast<std::int64_t>(s / 2)};
    if (s % 2 == 1) units.push_back({{s - 1, s}, 16});
  }
  std::vector<std::int32_t> positions;
  for (const PlacedShard& placed : place_shards(shards, units, 2, PlacementLimit{})) {
    positions.push_back(placed.position);
  }
  EXPECT_THAT(positions, ElementsAre(0, 0, 1, 1, 0, 1));
}

TEST(FcpDistributor, CutsAShardThatFitsNoTokenLimit) {
  std::vector<Shard> shards(3);
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const auto at = static_cast<std::int64_t>(10 * s);
    shards[s] = {{{at, at + 10}}, 10, 100, static_cast<std::int64_t>(s)};
  }
  const std::vector<ShardUnit> units = {{{0}, 100}, {{1}, 100}, {{2}, 100}};
  const std::vector<PlacedShard> placed = place_shards(shards, units, 2, {.tokens = 15});
  ASSERT_EQ(placed.size(), 4U);
  EXPECT_THAT(placed[2].shard.ranges, ElementsAre(Range{20, 25}));
  EXPECT_THAT(placed[3].shard.ranges, ElementsAre(Range{25, 30}));
  EXPECT_EQ(placed[2].shard.cost, 50);
  EXPECT_NE(placed[2].position, placed[3].position);
}

// f(B) of the paper: the same pairs take longer in short documents.
TEST(FcpDistributor, PricesShortDocumentsByTheProfile) {
  const AttentionProfile profile = load_cluster("dgx-h100").attention;
  const std::vector<std::int64_t> lengths(16, 256);
  const Workload shorts = batch_of(lengths);
  const Shard composite = shard_documents(shorts, 4096, 1, &profile).front();
  ASSERT_EQ(composite.tokens, 4096);
  // A document costs its 256 · 257 / 2 pairs, 64 + 218 more per row, and 9600 per call.
  const double document = 256.0 * 257 / 2 + 282 * 256 + 9600;
  EXPECT_NEAR(static_cast<double>(composite.cost), 16 * document, 0.02 * 16 * document);
  EXPECT_EQ(shard_documents(shorts, 4096).front().cost, 16 * 256 * 257 / 2);
  // A block that attends 28672 keys and itself has about one overhead per row.
  const std::vector<Shard> whole = shard_documents(batch_of({32768}), 4096, 1, &profile);
  const double pairs = 4096.0 * 28672 + 4096.0 * 4097 / 2;
  EXPECT_NEAR(static_cast<double>(whole.back().cost), pairs + 282 * 4096, 0.01 * pairs);
}

TEST(FcpDistributor, CutsADocumentFinerWhosePairsAreTooHeavy) {
  // A document of 8 blocks of 8192 has nearly all work. On 4 positions its pairs cost a quarter of
  // it each, the mean load; a third of that needs 12 pairs, 24 blocks.
  const Workload workload = batch_of({65536, 100});
  const std::vector<Shard> shards = shard_documents(workload, 8192);
  ASSERT_EQ(shards.size(), 9U);
  const std::vector<Shard> cut = cut_heavy_documents(workload, shards, 4, nullptr);
  ASSERT_EQ(cut.size(), 25U);
  EXPECT_EQ(cut[1].tokens, 2731);
  EXPECT_EQ(cut[1].cost, 2731 * 2731 + 2731 * 2732 / 2);
  EXPECT_EQ(cut[24].document, -1);
  // On 2 positions 6 pairs cost a third of the mean, on 40 they would be below 1024 tokens. One
  // position has nothing to balance.
  EXPECT_EQ(cut_heavy_documents(workload, shards, 2, nullptr).size(), 13U);
  EXPECT_EQ(cut_heavy_documents(workload, shards, 40, nullptr).size(), 65U);
  EXPECT_EQ(cut_heavy_documents(workload, shards, 1, nullptr).size(), 9U);
}

TEST(FcpDistributor, WeighsMasksByTheirLayers) {
  std::vector<MaskUse> masks(2);
  masks[0].name = "full";
  masks[0].layers = 1;
  masks[0].spec.rule = MaskSpec::Rule::kFull;
  masks[1].name = "window";
  masks[1].layers = 10;
  masks[1].spec.rule = MaskSpec::Rule::kSlidingWindow;
  masks[1].spec.window = 1;
  const Workload workload = make_workload(std::vector<std::int64_t>{40}, {}, masks);
  for (const Shard& shard : shard_documents(workload, 10)) {
    EXPECT_EQ(shard.cost, 10 * 40 + 10 * 10);
  }
}

}  // namespace
}  // namespace contextile
