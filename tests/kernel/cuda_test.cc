// The parts of the CUDA kernels: the places of elements, lists of blocks, the calls that a launch
// takes. The program itself runs in the conformance tests, as "cuda:host".
//
// Suffixes: N query rows, M key rows, H heads, D head dim.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "contextile/base.h"
#include "contextile/tensor.h"
#include "kernel/cuda/entry_points.h"
#include "kernel/cuda/layout.h"
#include "kernel/cuda/mma_backward.h"
#include "kernel/cuda/mma_forward.h"
#include "kernel/cuda/tile_lists.h"
#include "kernel/cuda/tile_steps.h"
#include "support/cuda_host_kernel.h"
#include "support/host_cta.h"
#include "support/mask_support.h"

namespace contextile::cuda {
namespace {

// The places are written out element by element as in the PTX manual ("Matrix fragments for
// mma.m16n8k16").
TEST(CudaLayout, ElementsStandWhereThePtxManualPutsThem) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const int group = lane >> 2;
    const int in_group = lane % 4;
    for (int i = 0; i < 8; ++i) {
      const Place left = place_in_left(lane, i / 2, i % 2);
      const bool is_upper = i < 2 || (i >= 4 && i < 6);
      EXPECT_EQ(left.row, is_upper ? group : group + 8);
      EXPECT_EQ(left.col, i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8);
    }
    for (int i = 0; i < 4; ++i) {
      const Place right = place_in_right(lane, i / 2, i % 2);
      EXPECT_EQ(right.row, i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8);
      EXPECT_EQ(right.col, group);
      const Place sum = place_in_sum(lane, i);
      EXPECT_EQ(sum.row, i < 2 ? group : group + 8);
      EXPECT_EQ(sum.col, in_group * 2 + (i & 1));
    }
  }
}

template <int kDim>
void expect_rows_spread_over_banks() {
  std::set<int> places;
  for (int row = 0; row < 64; ++row) {
    for (int col = 0; col < kDim; ++col) {
      places.insert(shared_at<kDim>(row, col));
      EXPECT_EQ(shared_at<kDim>(row, col), shared_at<kDim>(row, col / 8 * 8) + col % 8);
    }
  }
  EXPECT_EQ(places.size(), 64U * kDim);  // no two elements in one place
  EXPECT_EQ(*places.rbegin(), 64 * kDim - 1);
  for (int row = 0; row < 64; row += 8) {
    for (int col = 0; col < kDim; col += 8) {
      std::set<int> banks;  // of 16 bytes: all that are read at once
      for (int r = 0; r < 8; ++r) banks.insert(shared_at<kDim>(row + r, col) / 8 % 8);
      EXPECT_EQ(banks.size(), 8U);
    }
  }
}

TEST(CudaLayout, TheRowsOfAMatrixSpreadOverAllBanks) {
  expect_rows_spread_over_banks<64>();
  expect_rows_spread_over_banks<96>();
  expect_rows_spread_over_banks<128>();
  expect_rows_spread_over_banks<192>();
  expect_rows_spread_over_banks<256>();
}

// The sizes of shared memory must be those of docs/results/gpu.md.
TEST(CudaLayout, SharedMemoryIsAsMuchAsDocumented) {
  EXPECT_EQ((kForwardShared<64, 64>), 24576U);
  EXPECT_EQ((kForwardShared<96, 96>), 36864U);
  EXPECT_EQ((kForwardShared<128, 128>), 49152U);
  EXPECT_EQ((kForwardShared<192, 128>), 65536U);
  EXPECT_EQ((kForwardShared<256, 256>), 65536U);
  EXPECT_EQ((kBackwardShared<Gradient::kQ, 64, 64>), 25088U);
  EXPECT_EQ((kBackwardShared<Gradient::kKAndV, 64, 64>), 25088U);
  EXPECT_EQ((kBackwardShared<Gradient::kKAndV, 96, 96>), 37376U);
  EXPECT_EQ((kBackwardShared<Gradient::kKAndV, 128, 128>), 49664U);
  EXPECT_EQ((kBackwardShared<Gradient::kQ, 192, 128>), 61952U);
  EXPECT_EQ((kBackwardShared<Gradient::kKAndV, 192, 128>), 51712U);
  EXPECT_EQ((kBackwardShared<Gradient::kQ, 256, 256>), 82432U);
  EXPECT_EQ((kBackwardShared<Gradient::kK, 256, 256>), 82432U);
  EXPECT_EQ((kBackwardShared<Gradient::kV, 256, 256>), 66048U);
}

TEST(CudaLayout, TwoBlocksOfThreadsFitTheSharedMemoryOfSm80) {
  // An SM has 164 KiB, of which the system takes one for every CTA (the architecture's tuning
  // guide).
  constexpr std::int32_t kMost = (164 / 2 - 1) * 1024;
  for (const std::int32_t dim : {64, 96, 128, 192, 256}) {
    const KernelParams params{1, 1, dim, dim == 192 ? 128 : dim, 1, 0};
    EXPECT_LE(forward_entry(params, Dtype::kBf16).shared_bytes, kMost);
    for (const Gradient gradient : kGradients) {
      EXPECT_LE(backward_entry(params, Dtype::kBf16, gradient).shared_bytes, kMost);
    }
  }
}

TEST(CudaEntryPoints, ACallTakesTheSmallestKernelThatHoldsItsDims) {
  const auto name = [](std::int32_t dim, std::int32_t value_dim) {
    return forward_entry({1, 1, dim, value_dim, 1, 0}, Dtype::kF16).name;
  };
  EXPECT_EQ(name(8, 64), "forward_f16_64");
  EXPECT_EQ(name(64, 72), "forward_f16_96");
  EXPECT_EQ(name(128, 104), "forward_f16_128");
  EXPECT_EQ(name(136, 128), "forward_f16_192_128");
  EXPECT_EQ(name(192, 128), "forward_f16_192_128");
  EXPECT_EQ(name(128, 192), "forward_f16_256");
  EXPECT_EQ(name(200, 8), "forward_f16_256");
}

TEST(CudaEntryPoints, EveryGradientIsWrittenByOnePass) {
  for (std::int32_t dim = 8; dim <= 256; dim += 8) {
    for (std::int32_t value_dim = 8; value_dim <= 256; value_dim += 8) {
      int of_q = 0;
      int of_k = 0;
      int of_v = 0;
      for (const Gradient gradient : kGradients) {
        const EntryPoint entry =
            backward_entry({1, 1, dim, value_dim, 1, 0}, Dtype::kBf16, gradient);
        if (entry.name.empty()) continue;
        EXPECT_GT(entry.rows, 0);
        of_q += keys_own(gradient) ? 0 : 1;
        of_k += keys_own(gradient) && has_first(gradient) ? 1 : 0;
        of_v += has_second(gradient) ? 1 : 0;
      }
      ASSERT_EQ(of_q, 1) << dim << "/" << value_dim;
      ASSERT_EQ(of_k, 1) << dim << "/" << value_dim;
      ASSERT_EQ(of_v, 1) << dim << "/" << value_dim;
    }
  }
}

// A tile without numbers; its slots are known by address.
struct TileOfBands {
  std::int64_t rows = 0;
  std::int64_t keys = 0;
  std::vector<LocalBand> bands;
};

BackwardTile backward_tile(const TileOfBands& tile, int* slots, bool init) {
  BackwardTile made;
  made.q_NHD.tokens = tile.rows;
  made.k_MHD.tokens = tile.keys;
  made.dq_NHD.data = slots;
  made.dk_MHD.data = slots + 1;
  made.bands = tile.bands;
  made.init_dq = made.init_dkv = init;
  return made;
}

// Number of times that a table meets every pair of flat rows [owned][streamed], and in which
// blocks.
struct Met {
  std::vector<int> counts;
  std::int64_t full_blocks = 0;
  std::int64_t masked_blocks = 0;
};

template <bool kKeysOwn>
Met met_by(const LaunchTable& table, std::int32_t heads, std::int64_t streamed_rows,
           std::int64_t owned_rows, std::int32_t rows_of_block) {
  Launch launch;
  launch.bands = table.bands.data();
  launch.heads = heads;
  Met met;
  met.counts.resize(static_cast<std::size_t>(owned_rows * streamed_rows));
  for (const OwnedBlock& owned : table.owned) {
    StreamedBlocks blocks(table.runs.data() + owned.first_run, owned.num_blocks, rows_of_block);
    for (std::int32_t b = 0; b < owned.num_blocks; ++b) {
      if (b > 0) blocks.advance();
      const StreamedBlock block = blocks.block();
      const bool is_full = block.num_bands == 0;
      (is_full ? met.full_blocks : met.masked_blocks) += 1;
      EXPECT_LE(block.end - block.begin, rows_of_block);
      if (is_full) {
        EXPECT_EQ(block.end - block.begin, rows_of_block);
      }
      for (std::int32_t row = owned.begin; row < owned.end; ++row) {
        for (std::int32_t s = block.begin; s < block.end; ++s) {
          const bool pair = is_full || attends<kKeysOwn>(launch, block, row, s);
          met.counts[static_cast<std::size_t>(row * streamed_rows + s)] += pair ? 1 : 0;
        }
      }
    }
  }
  return met;
}

std::vector<LocalBand> disjoint_bands(Rng& rng, std::int64_t rows, std::int64_t keys) {
  std::vector<LocalBand> bands;
  DenseMask taken(rows, keys);
  for (std::int64_t i = random_between(rng, 0, 6); i > 0; --i) {
    const Band band = clip(random_band(rng, rows, keys), {0, rows}, {0, keys});
    DenseMask both = taken;
    add_to_dense(band, both);
    if (std::any_of(both.counts.begin(), both.counts.end(), [](auto n) { return n > 1; })) continue;
    taken = both;
    bands.push_back(band);
  }
  return bands;
}

TEST(CudaTables, MeetEveryPairOnceWhoeverOwns) {
  std::int64_t full_blocks = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const auto heads = static_cast<std::int32_t>(random_between(rng, 1, 5));
    TileOfBands tile{random_between(rng, 1, 260), random_between(rng, 1, 260), {}};
    tile.bands = disjoint_bands(rng, tile.rows, tile.keys);
    int slots[2];
    const std::vector<BackwardTile> tiles = {backward_tile(tile, slots, true)};
    const KernelParams params{2 * heads, 2, 64, 64, 1, 0};
    const std::int64_t rows = tile.rows * heads;
    const Met by_query = met_by<false>(query_gradient_table(params, tiles, 0, 1, {.streamed = 64}),
                                       heads, tile.keys, rows, 64);
    const Met by_key = met_by<true>(key_gradient_table(params, tiles, 0, 1, {.streamed = 32}),
                                    heads, rows, tile.keys, 32);
    const DenseMask mask = dense_of_bands(tile.bands, tile.rows, tile.keys);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t m = 0; m < tile.keys; ++m) {
        const int expected = mask.at(r / heads, m) == 0 ? 0 : 1;
        ASSERT_EQ(by_query.counts[static_cast<std::size_t>(r * tile.keys + m)], expected);
        ASSERT_EQ(by_key.counts[static_cast<std::size_t>(m * rows + r)], expected);
      }
    }
    full_blocks += by_query.full_blocks + by_key.full_blocks;
  }
  EXPECT_GT(full_blocks, 100);
}

// Pairs of blocks grow with the square of the tokens.
TEST(CudaTables, GrowWithRowsNotWithPairsOfBlocks) {
  const auto numbers_of = [](std::int64_t tokens) {
    const TileOfBands causal{tokens, tokens, {{{0, tokens}, {0, tokens}, -kUnbounded, 0}}};
    int slots[2];
    const std::vector<BackwardTile> tiles = {backward_tile(causal, slots, true)};
    const KernelParams params{4, 1, 64, 64, 1, 0};
    std::size_t entries = 0;
    std::int64_t blocks = 0;
    for (const auto& table_of : {query_gradient_table, key_gradient_table}) {
      const LaunchTable table = table_of(params, tiles, 0, 1, {.owned = 128, .streamed = 64});
      entries += table.owned.size() + table.runs.size() + table.bands.size();
      for (const OwnedBlock& owned : table.owned) blocks += owned.num_blocks;
    }
    return std::pair(static_cast<std::int64_t>(entries), blocks);
  };
  const auto [entries, blocks] = numbers_of(1 << 14);
  const auto [entries_of_twice, blocks_of_twice] = numbers_of(1 << 15);
  EXPECT_GT(blocks_of_twice, 3 * blocks);
  EXPECT_LE(entries_of_twice, 2 * entries + 8);
  EXPECT_LE(entries, 5 * 5 * (1 << 14) / 128);  // five for every block of 128 of 5 rows a token
}

TEST(CudaTables, OfACausalTileOnlyTheDiagonalIsMasked) {
  const TileOfBands causal{512, 512, {{{0, 512}, {0, 512}, -kUnbounded, 0}}};
  int slots[2];
  const std::vector<BackwardTile> tiles = {backward_tile(causal, slots, true)};
  const KernelParams params{1, 1, 64, 64, 1, 0};
  const LaunchTable table = query_gradient_table(params, tiles, 0, 1, {.streamed = 64});
  const Met met = met_by<false>(table, 1, 512, 512, 64);
  EXPECT_EQ(met.full_blocks, 28);
  EXPECT_EQ(met.masked_blocks, 8);
  for (std::size_t i = 1; i < table.owned.size(); ++i) {  // the longest first
    EXPECT_GE(table.owned[i - 1].num_blocks, table.owned[i].num_blocks);
  }
  const Met by_key =
      met_by<true>(key_gradient_table(params, tiles, 0, 1, {.streamed = 32}), 1, 512, 512, 32);
  EXPECT_EQ(by_key.full_blocks, 56);
  EXPECT_EQ(by_key.masked_blocks, 16);
}

TEST(CudaTables, TilesOfOneSlotAreOnePassInListedOrder) {
  const TileOfBands tile{64, 64, {{{0, 64}, {0, 64}}}};
  int slots[2];
  const std::vector<BackwardTile> tiles = {backward_tile(tile, slots, true),
                                           backward_tile(tile, slots, false),
                                           backward_tile(tile, slots, false)};
  ASSERT_EQ(end_of_launch(tiles, 0), 3U);
  const KernelParams params{1, 1, 64, 64, 1, 0};
  const LaunchTable table = query_gradient_table(params, tiles, 0, 3, {.streamed = 64});
  ASSERT_EQ(table.owned.size(), 1U);
  EXPECT_TRUE(table.owned[0].init);
  ASSERT_EQ(table.runs.size(), 3U);
  for (std::int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(table.runs[static_cast<std::size_t>(i)].tile, i);
  }
}

TEST(CudaTables, ALaunchEndsWhereASlotStartsAnewOrMeetsOtherRows) {
  const TileOfBands tile{64, 64, {{{0, 64}, {0, 64}}}};
  int slots[2];
  int others[2];
  std::vector<BackwardTile> tiles = {backward_tile(tile, slots, true),
                                     backward_tile(tile, others, true),
                                     backward_tile(tile, slots, false)};
  EXPECT_EQ(end_of_launch(tiles, 0), 3U);
  tiles[2].init_dkv = true;
  EXPECT_EQ(end_of_launch(tiles, 0), 2U);
  EXPECT_EQ(end_of_launch(tiles, 2), 3U);
  tiles[2].init_dkv = false;
  tiles[2].q_NHD.data = others;
  EXPECT_EQ(end_of_launch(tiles, 0), 2U);
}

TEST(CudaTables, TakeWhatTheDeviceCanLoad) {
  const auto found = [](Dtype dtype, std::int32_t dim, std::int64_t token_stride,
                        std::int64_t tokens = 2, std::int64_t head_stride = 8,
                        std::int32_t heads = 1) {
    std::vector<std::uint16_t> array(4096);
    ForwardTile tile;
    const TensorView view{array.data(), dtype, tokens, heads, dim, token_stride, head_stride};
    tile.q_NHD = tile.k_MHD = tile.v_MHD = view;
    try {
      return device_tiles(std::span<const ForwardTile>(&tile, 1)).size() == 1 ? std::string("taken")
                                                                              : std::string();
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(found(Dtype::kBf16, 64, 64), "taken");
  EXPECT_EQ(found(Dtype::kF16, 128, 136), "taken");
  EXPECT_NE(found(Dtype::kF32, 64, 64).find("found f32"), std::string::npos);
  EXPECT_NE(found(Dtype::kBf16, 60, 64).find("found 60"), std::string::npos);
  EXPECT_EQ(found(Dtype::kBf16, 256, 256), "taken");
  EXPECT_NE(found(Dtype::kBf16, 264, 264).find("found 264"), std::string::npos);
  EXPECT_NE(found(Dtype::kBf16, 64, 65).find("16 bytes"), std::string::npos);
  // PyTorch gives any stride to a dimension of size one.
  EXPECT_EQ(found(Dtype::kBf16, 64, 65, 1), "taken");
  EXPECT_EQ(found(Dtype::kBf16, 64, 64, 2, 65), "taken");
  EXPECT_NE(found(Dtype::kBf16, 64, 64, 2, 65, 2).find("16 bytes"), std::string::npos);
}

}  // namespace
}  // namespace contextile::cuda
