#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "batch/mask/tile_table.h"
#include "contextile/mask.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

// A random mask over some random sequences, the same mask as a matrix, and blocks over its tokens.
struct Case {
  std::int64_t num_tokens = 0;
  Mask mask;
  DenseMask dense{0, 0};
  Blocking blocking;

  // mask ∩ (q block x kv block) with a row and a column for every row of the blocks.
  [[nodiscard]] DenseMask tile(BlockId q_block, BlockId kv_block) const {
    const std::vector<std::int64_t> queries = tokens_of_rows(blocking, q_block);
    const std::vector<std::int64_t> keys = tokens_of_rows(blocking, kv_block);
    DenseMask tile(std::ssize(queries), std::ssize(keys));
    for (std::size_t q = 0; q < queries.size(); ++q) {
      for (std::size_t k = 0; k < keys.size(); ++k) {
        tile.at(static_cast<std::int64_t>(q), static_cast<std::int64_t>(k)) =
            dense.at(queries[q], keys[k]);
      }
    }
    return tile;
  }
};

Case random_case(std::uint64_t seed) {
  Rng rng(seed);
  Case result;
  const std::vector<Range> sequences = laid_end_to_end(random_lengths(rng, 4, 24));
  result.num_tokens = sequences.back().end;
  if (random_chance(rng, 0.8)) {
    const MaskSpec spec = random_mask_spec(rng, 24);
    result.mask = build_mask(spec, sequences);
    result.dense = dense_of_rule(spec, sequences);
  } else {
    result.dense = DenseMask(result.num_tokens, result.num_tokens);
    for (std::uint8_t& cell : result.dense.counts) cell = random_chance(rng, 0.4) ? 1 : 0;
    result.mask = mask_from_dense(result.dense.counts, result.num_tokens, result.num_tokens);
  }
  const double coverage = random_chance(rng, 0.5) ? 1 : 0.7;
  result.blocking = random_blocking(rng, result.num_tokens, random_between(rng, 1, 12),
                                    random_between(rng, 1, 4), coverage);
  return result;
}

class RandomMaskAndBlocks : public ::testing::TestWithParam<int> {};

constexpr int kSeedsPerShard = 150;

TEST_P(RandomMaskAndBlocks, TilesAreTheNonEmptyBlockPairsInOrder) {
  for (int s = 0; s < kSeedsPerShard; ++s) {
    const auto seed = static_cast<std::uint64_t>(GetParam() * kSeedsPerShard + s);
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Case random = random_case(seed);
    std::vector<Tile> expected;
    for (std::int32_t q = 0; q < random.blocking.num_blocks(); ++q) {
      for (std::int32_t kv = 0; kv < random.blocking.num_blocks(); ++kv) {
        const std::int64_t pairs = random.tile(BlockId{q}, BlockId{kv}).num_pairs();
        if (pairs > 0) expected.push_back({BlockId{q}, BlockId{kv}, pairs});
      }
    }
    ASSERT_EQ(TileIndex(random.mask, random.blocking).tiles(), expected);
  }
}

TEST_P(RandomMaskAndBlocks, BandsOfATileAreExactlyItsPartOfTheMask) {
  for (int s = 0; s < kSeedsPerShard; ++s) {
    const auto seed = static_cast<std::uint64_t>(GetParam() * kSeedsPerShard + s);
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Case random = random_case(seed);
    const TileIndex index(random.mask, random.blocking);
    for (std::int32_t q = 0; q < random.blocking.num_blocks(); ++q) {
      for (std::int32_t kv = 0; kv < random.blocking.num_blocks(); ++kv) {
        const DenseMask expected = random.tile(BlockId{q}, BlockId{kv});
        const LocalBand earlier{{90, 91}, {90, 91}};
        std::vector<LocalBand> bands = {earlier};
        const std::int64_t pairs = index.append_bands(BlockId{q}, BlockId{kv}, bands);
        ASSERT_EQ(bands.front(), earlier);
        bands.erase(bands.begin());
        ASSERT_EQ(pairs, expected.num_pairs());
        ASSERT_EQ(dense_of_bands(bands, expected.num_queries, expected.num_keys), expected);
        ASSERT_TRUE(std::ranges::is_sorted(bands));
        for (const LocalBand& band : bands) ASSERT_EQ(band, clip(band, band.q, band.k));
        const TileCover cover = pairs == 0                             ? TileCover::kEmpty
                                : pairs == std::ssize(expected.counts) ? TileCover::kFull
                                                                       : TileCover::kPartial;
        ASSERT_EQ(index.cover(BlockId{q}, BlockId{kv}), cover);
      }
    }
  }
}

TEST_P(RandomMaskAndBlocks, ABoundThatCutsNothingIsNone) {
  for (int s = 0; s < kSeedsPerShard; ++s) {
    const auto seed = static_cast<std::uint64_t>(GetParam() * kSeedsPerShard + s);
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Case random = random_case(seed);
    const TileIndex index(random.mask, random.blocking);
    for (const Tile& tile : index.tiles()) {
      std::vector<LocalBand> bands;
      (void)index.append_bands(tile.q_block, tile.kv_block, bands);
      for (const LocalBand& band : bands) {
        LocalBand no_lo = band;
        no_lo.lo = -kUnbounded;
        LocalBand no_hi = band;
        no_hi.hi = kUnbounded;
        ASSERT_TRUE(band.lo == -kUnbounded || num_pairs(no_lo) > num_pairs(band));
        ASSERT_TRUE(band.hi == kUnbounded || num_pairs(no_hi) > num_pairs(band));
      }
    }
  }
}

// Adds up rectangles of the same queries, and keeps all other pieces one by one.
std::vector<TilePiece> with_rectangles_joined(const std::vector<TilePiece>& pieces) {
  std::vector<TilePiece> joined;
  std::map<std::pair<std::int64_t, std::int64_t>, TilePiece> rectangles;  // by queries
  for (const TilePiece& piece : pieces) {
    if (piece.pairs != piece.q.size() * piece.keys) {
      joined.push_back(piece);
      continue;
    }
    TilePiece& sum = rectangles[{piece.q.begin, piece.q.end}];
    sum = {piece.q, sum.keys + piece.keys, sum.pairs + piece.pairs};
  }
  for (const auto& [queries, sum] : rectangles) joined.push_back(sum);
  return joined;
}

TEST_P(RandomMaskAndBlocks, PiecesAreTheBandsSizesRectanglesOfTheSameQueriesTogether) {
  const auto rows_of = [](const TilePiece& piece) {
    return std::tuple(piece.q.begin, piece.q.end, piece.keys, piece.pairs);
  };
  for (int s = 0; s < kSeedsPerShard; ++s) {
    const auto seed = static_cast<std::uint64_t>(GetParam() * kSeedsPerShard + s);
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Case random = random_case(seed);
    const TileIndex index(random.mask, random.blocking);
    std::int64_t num_bands = 0;
    for (const Tile& tile : index.tiles()) {
      std::vector<LocalBand> bands;
      (void)index.append_bands(tile.q_block, tile.kv_block, bands);
      num_bands += std::ssize(bands);
      std::vector<TilePiece> of_bands;
      for (const LocalBand& band : bands) {
        of_bands.push_back({band.q, band.k.size(), num_pairs(band)});
      }
      std::vector<TilePiece> appended;
      index.append_pieces(tile.q_block, tile.kv_block, appended);
      ASSERT_LE(appended.size(), of_bands.size());
      std::vector<TilePiece> expected = with_rectangles_joined(of_bands);
      std::vector<TilePiece> pieces = with_rectangles_joined(appended);
      std::ranges::sort(expected, {}, rows_of);
      std::ranges::sort(pieces, {}, rows_of);
      ASSERT_TRUE(std::ranges::equal(pieces, expected, {}, rows_of, rows_of));
    }
    ASSERT_EQ(num_bands, index.num_pieces());
  }
}

TEST(TileTable, ComparesBlocksOfThousandsOfRanges) {
  constexpr std::int32_t kRanks = 64;
  constexpr std::int64_t kDocuments = 8192;  // every rank has a token of each: 17M pieces
  std::vector<std::vector<Range>> blocks(kRanks);
  Mask mask;
  for (std::int64_t d = 0; d < kDocuments; ++d) {
    const Range document{d * kRanks, (d + 1) * kRanks};
    mask.bands.push_back({.q = document, .k = document, .hi = 0});
    for (std::int64_t r = 0; r < kRanks; ++r) {
      const std::int64_t token = document.begin + (d % 2 == 0 ? r : kRanks - 1 - r);
      blocks[static_cast<std::size_t>(r)].push_back({token, token + 1});
    }
  }
  Blocking blocking;
  for (const std::vector<Range>& ranges : blocks) (void)blocking.add(ranges);
  ASSERT_GT(TileIndex(mask, blocking).num_pieces(), std::int64_t{1} << 24);
  const auto table = tiles_beside(mask, blocking, kRanks * kRanks);
  ASSERT_TRUE(table.has_value());
  std::int64_t pairs = 0;
  for (const Tile& tile : table->tiles()) pairs += tile.pairs;
  EXPECT_EQ(pairs, mask.num_pairs());
}

TEST_P(RandomMaskAndBlocks, ATableFindsEveryTileAndNoOther) {
  for (int s = 0; s < kSeedsPerShard; ++s) {
    const auto seed = static_cast<std::uint64_t>(GetParam() * kSeedsPerShard + s);
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Case random = random_case(seed);
    const TileIndex index(random.mask, random.blocking);
    const std::vector<Tile> tiles = index.tiles();
    const std::int64_t num_tiles = std::ssize(tiles);
    ASSERT_GE(index.num_pieces(), num_tiles);
    ASSERT_EQ(index.tiles_up_to(num_tiles), tiles);
    if (num_tiles > 0) {
      ASSERT_EQ(index.tiles_up_to(num_tiles - 1), std::nullopt);
    }
    const TileTable table(tiles, random.blocking.num_blocks());
    std::int64_t found = 0;
    for (std::int32_t q = 0; q < random.blocking.num_blocks(); ++q) {
      for (std::int32_t kv = 0; kv < random.blocking.num_blocks(); ++kv) {
        const std::int64_t at = table.find(BlockId{q}, BlockId{kv});
        if (at < 0) continue;
        ++found;
        const Tile& tile = table.tiles()[static_cast<std::size_t>(at)];
        ASSERT_EQ(std::pair(tile.q_block, tile.kv_block), std::pair(BlockId{q}, BlockId{kv}));
      }
    }
    ASSERT_EQ(found, num_tiles);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomMaskAndBlocks, ::testing::Range(0, 4));

std::int64_t pairs_of(const std::vector<Tile>& tiles) {
  std::int64_t pairs = 0;
  for (const Tile& tile : tiles) pairs += tile.pairs;
  return pairs;
}

Blocking even_blocks(std::int64_t num_tokens, std::int64_t block_size) {
  Blocking blocking;
  for (std::int64_t begin = 0; begin < num_tokens; begin += block_size) {
    blocking.add({begin, std::min(begin + block_size, num_tokens)});
  }
  return blocking;
}

TEST(TileIndex, HasAllTilesOfAMillionCausalTokens) {
  constexpr std::int64_t kTokens = 1 << 20;
  const Mask mask = build_mask({}, std::vector<Range>{{0, kTokens}});
  const std::vector<Tile> tiles = TileIndex(mask, even_blocks(kTokens, 1024)).tiles();
  EXPECT_EQ(tiles.size(), 524'800U);
  EXPECT_EQ(pairs_of(tiles), mask.num_pairs());
}

// Two blocks per rank, each with a slice of every one of ten thousand documents.
TEST(TileIndex, TakesCompositeBlocksOfThousandsOfRanges) {
  constexpr std::int64_t kDocuments = 10'000;
  constexpr std::int64_t kRanks = 4;
  constexpr std::int64_t kSlice = 13;
  std::vector<Range> sequences;
  std::vector<std::vector<Range>> slices(2 * kRanks);
  for (std::int64_t d = 0; d < kDocuments; ++d) {
    const std::int64_t begin = d * 2 * kRanks * kSlice;
    sequences.push_back({begin, begin + 2 * kRanks * kSlice});
    for (std::int64_t r = 0; r < 2 * kRanks; ++r) {
      slices[static_cast<std::size_t>(r)].push_back({begin + r * kSlice, begin + (r + 1) * kSlice});
    }
  }
  Blocking blocking;
  for (const std::vector<Range>& ranges : slices) blocking.add(ranges);
  const Mask mask = build_mask({}, sequences);
  const TileIndex index(mask, blocking);
  const std::vector<Tile> tiles = index.tiles();
  EXPECT_EQ(tiles.size(), static_cast<std::size_t>(kRanks * (2 * kRanks + 1)));
  EXPECT_EQ(pairs_of(tiles), mask.num_pairs());
  for (const Tile& tile : tiles) {
    std::vector<LocalBand> bands;
    EXPECT_EQ(index.append_bands(tile.q_block, tile.kv_block, bands), tile.pairs);
    EXPECT_EQ(bands.size(), static_cast<std::size_t>(kDocuments));
  }
}

TEST(TileIndex, OfNothingHasNoTiles) {
  EXPECT_TRUE(TileIndex({}, {}).tiles().empty());
  EXPECT_TRUE(TileIndex({}, even_blocks(10, 3)).tiles().empty());
  const Mask mask = build_mask({}, std::vector<Range>{{0, 10}});
  EXPECT_TRUE(TileIndex(mask, {}).tiles().empty());
}

TEST(TileIndex, RejectsBlocksItDoesNotHave) {
  const Mask mask = build_mask({}, std::vector<Range>{{0, 10}});
  const TileIndex index(mask, even_blocks(10, 5));
  std::vector<LocalBand> bands;
  EXPECT_THROW((void)index.append_bands(BlockId{2}, BlockId{0}, bands), InvalidArgument);
  EXPECT_THROW((void)index.append_bands(BlockId{0}, BlockId{2}, bands), InvalidArgument);
  EXPECT_THROW((void)index.cover(kInvalidBlock, BlockId{0}), InvalidArgument);
}

TEST(TileIndex, RejectsBlocksThatShareTokens) {
  Blocking blocking;
  blocking.add({0, 5});
  blocking.add({4, 10});
  EXPECT_THROW(TileIndex({}, blocking), InvalidArgument);
}

}  // namespace
}  // namespace contextile
