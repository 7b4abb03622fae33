// From products of Q and K to weights: cap, mask and exponents.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernel/cuda/launch.h"
#include "kernel/cuda/tile_steps.h"

namespace contextile::cuda {

inline constexpr float kLog2OfE = 1.44269504088896341F;
inline constexpr float kLn2 = 0.693147180559945309F;

// Scores times `exponent_factor` are exponents of 2. Without a cap the products are the scores.
// With a cap, or if the scale would not keep their order, the products are finished before.
CONTEXTILE_HD bool scores_are_products(const Launch& launch) {
  return launch.softcap == 0 && launch.scale > 0;
}
CONTEXTILE_HD float exponent_factor(const Launch& launch) {
  return scores_are_products(launch) ? launch.scale * kLog2OfE : 1;
}

// Returns cap · tanh(product · scale / cap) in units of log2(e), by
// tanh(x) = 1 - 2 / (exp(2x) + 1), which has no branch. Its error is that of a number near 1.
template <typename Cta>
CONTEXTILE_HD float capped_score(float product, float scale, float cap) {
  const float power = Cta::exp2(product * (2 * kLog2OfE * scale / cap));
  return cap * kLog2OfE - 2 * cap * kLog2OfE * Cta::reciprocal(power + 1);
}

// Returns a bit for every column below `end` among those of a lane, two of each tile.
CONTEXTILE_HD std::uint32_t columns_below(int lane, std::int32_t end, int tiles) {
  if (end <= 0) return 0;
  if (end >= tiles * 8) return ~std::uint32_t{0};
  const int rest = end % 8 - lane % 4 * 2;
  const int count = end / 8 * 2 + (rest < 0 ? 0 : rest > 2 ? 2 : rest);
  return count == 32 ? ~std::uint32_t{0} : (std::uint32_t{1} << count) - 1;
}

// Returns the lane's columns of a block that a band lets an owned token attend.
template <int kTiles>
CONTEXTILE_HD std::uint32_t columns_of_band(const TokenBand& band, const StreamedBlock& block,
                                            std::int32_t owned_token, std::int32_t streamed_heads,
                                            int lane) {
  if (owned_token < band.owned_begin || owned_token >= band.owned_end) return 0;
  const std::int32_t lo = owned_token + band.lo;
  const std::int32_t hi = owned_token + band.hi + 1;
  const std::int32_t end = hi < band.streamed_end ? hi : band.streamed_end;
  const std::int32_t begin = lo > band.streamed_begin ? lo : band.streamed_begin;
  if (begin >= end) return 0;  // so that no product overflows
  const std::int32_t flat_end = end * streamed_heads;
  const std::int32_t last = flat_end < block.end ? flat_end : block.end;
  return columns_below(lane, last - block.begin, kTiles) &
         ~columns_below(lane, begin * streamed_heads - block.begin, kTiles);
}

// Sets scores of a warp's 16 rows to -inf if a pair does not attend, for all columns of a row at
// once. kKeysOwn: a CTA owns keys and streams query rows, otherwise the other way round.
template <bool kKeysOwn, int kTiles, typename Cta>
CONTEXTILE_HD void mask_scores(Cta& cta, const Launch& launch, const StreamedBlock& block,
                               std::int32_t first_row,
                               typename Cta::template PerLane<Sums<kTiles>>& scores) {
  static_assert(kTiles * 2 <= 32, "a bit for every column of a lane");
  cta.each_lane([&](int lane) {
    CONTEXTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::int32_t row = first_row + lane / 4 + half * 8;
      const std::int32_t token = kKeysOwn ? row : row / launch.heads;
      std::uint32_t attended = 0;
      for (std::int32_t b = 0; b < block.num_bands; ++b) {
        attended |= columns_of_band<kTiles>(launch.bands[block.first_band + b], block, token,
                                            kKeysOwn ? launch.heads : 1, lane);
      }
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        CONTEXTILE_UNROLL
        for (int i = 0; i < 2; ++i) {
          if ((attended >> (tile * 2 + i) & 1) == 0) scores[lane].x[tile][half * 2 + i] = -INFINITY;
        }
      }
    }
  });
}

// Turns a block's products into scores: -inf if a pair does not attend.
template <bool kKeysOwn, int kTiles, typename Cta>
CONTEXTILE_HD void finish_scores(Cta& cta, const Launch& launch, const StreamedBlock& block,
                                 std::int32_t first_row,
                                 typename Cta::template PerLane<Sums<kTiles>>& scores) {
  if (!scores_are_products(launch)) {
    cta.each_lane([&](int lane) {
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        CONTEXTILE_UNROLL
        for (float& s : scores[lane].x[tile]) {
          s = launch.softcap == 0 ? s * (launch.scale * kLog2OfE)
                                  : capped_score<Cta>(s, launch.scale, launch.softcap);
        }
      }
    });
  }
  if (block.num_bands > 0) mask_scores<kKeysOwn, kTiles>(cta, launch, block, first_row, scores);
}

}  // namespace contextile::cuda
