// Backward in two passes, each of which owns the gradients that it writes, so that nothing is added
// atomically: query rows own dQ and stream keys, keys own dK and dV and stream query rows. In both
// passes
//   S = owned · streamedᵀ (Q and K),  dP = owned · streamedᵀ (dO and V),  dS = P ∘ (dP - delta),
//   gradient of the owned += dS · streamed, and with keys that own: dV += P · dO.
// If the registers cannot hold dK and dV together, each has a pass of its own; that of dV needs no
// dP.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernel/cuda/score_steps.h"
#include "kernel/cuda/tile_shapes.h"
#include "kernel/cuda/tile_steps.h"

namespace contextile::cuda {

// The gradients that a warp sums for its 16 owned rows.
template <typename Cta, Gradient kGradient, int kDim, int kValueDim>
struct BackwardRows {
  static constexpr int kTiles = kBackwardRows<kGradient, kDim, kValueDim> / 8;
  typename Cta::template PerLane<Sums<has_first(kGradient) ? kDim / 8 : 1>> first;  // dQ or dK
  typename Cta::template PerLane<Sums<has_second(kGradient) ? kValueDim / 8 : 1>> second;  // dV
};

inline constexpr int kStatsAtOnce = 4;  // rows

// Loads numbers of the query rows [row, row + 4) of one KV head that are below `end`: by one access
// if they lie next to each other, as those of the heads of a token do.
CONTEXTILE_HD Floats<kStatsAtOnce> load_stats_of(const DeviceRows<float>& stats, std::int32_t heads,
                                                 int kv_head, std::int32_t row, std::int32_t end) {
  const std::int64_t step = heads == 1 ? stats.token_stride : stats.head_stride;
  const bool is_one_token = heads == 1 || row % heads + kStatsAtOnce <= heads;
  const float* const first = in_global_memory(stats.at(row, heads, kv_head));
  if (step == 1 && is_one_token && row + kStatsAtOnce <= end &&
      is_at_multiple_of<kStatsAtOnce>(first)) {
    return *reinterpret_cast<const Floats<kStatsAtOnce>*>(first);
  }
  Floats<kStatsAtOnce> all;
  CONTEXTILE_UNROLL
  for (int i = 0; i < kStatsAtOnce; ++i) {
    all.x[i] = row + i < end ? *in_global_memory(stats.at(row + i, heads, kv_head)) : 0;
  }
  return all;
}

// Puts LSE, in units of log2(e), and delta of a query row at their place. A row that attends
// nothing, or is beyond the end, has an LSE of -inf, and gets weights exp2(s - inf) = 0.
CONTEXTILE_HD void put_row_stats(float lse, float delta, int at, float* stats) {
  stats[at] = lse == -INFINITY ? INFINITY : lse * kLog2OfE;
  stats[kOwnedRows + at] = lse == -INFINITY ? 0 : delta;
}

// Loads the statistics of query row `begin + at`, with few registers.
CONTEXTILE_HD void load_row_stats(const Launch& launch, const DeviceTile& tile, int kv_head,
                                  std::int32_t begin, std::int32_t end, int at, float* stats) {
  const std::int32_t row = begin + at;
  const bool present = row < end;
  const float lse =
      present ? *in_global_memory(tile.lse.at(row, launch.heads, kv_head)) : -INFINITY;
  const float delta = present ? *in_global_memory(tile.delta.at(row, launch.heads, kv_head)) : 0;
  put_row_stats(lse, delta, at, stats);
}

// Loads those of all rows of a block. A thread has four.
template <typename Cta>
CONTEXTILE_HD void load_stats(Cta& cta, const Launch& launch, const DeviceTile& tile, int kv_head,
                              std::int32_t begin, std::int32_t end, float* stats) {
  cta.each_thread([&](int thread) {
    const int at = thread * kStatsAtOnce;
    if (at >= kOwnedRows) return;
    const auto lse = load_stats_of(tile.lse, launch.heads, kv_head, begin + at, end);
    const auto delta = load_stats_of(tile.delta, launch.heads, kv_head, begin + at, end);
    CONTEXTILE_UNROLL
    for (int i = 0; i < kStatsAtOnce; ++i) {
      const bool present = begin + at + i < end;
      put_row_stats(present ? lse.x[i] : -INFINITY, delta.x[i], at + i, stats);
    }
  });
}

// Turns scores into weights.
template <bool kKeysOwn, int kTiles, typename Cta>
CONTEXTILE_HD void weights_of(Cta& cta, const Launch& launch, const float* stats, int warp_row,
                              typename Cta::template PerLane<Sums<kTiles>>& scores) {
  const float factor = exponent_factor(launch);
  cta.each_lane([&](int lane) {
    CONTEXTILE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      CONTEXTILE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const Place place = place_in_sum(lane, i);
        float& s = scores[lane].x[tile][i];
        const float lse = stats[kKeysOwn ? tile * 8 + place.col : warp_row + place.row];
        s = Cta::exp2(std::fma(s, factor, -lse));
      }
    }
  });
}

// Turns dP, or its tiles [kBegin, kEnd), into dS without the scale. The slope of a cap follows from
// the score, and the score from its weight.
template <bool kKeysOwn, int kTiles, int kBegin = 0, int kEnd = kTiles, typename Cta>
CONTEXTILE_HD void slopes_of(Cta& cta, const Launch& launch, const float* stats, int warp_row,
                             const typename Cta::template PerLane<Sums<kTiles>>& weights,
                             typename Cta::template PerLane<Sums<kTiles>>& dp) {
  cta.each_lane([&](int lane) {
    CONTEXTILE_UNROLL
    for (int tile = kBegin; tile < kEnd; ++tile) {
      CONTEXTILE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const Place place = place_in_sum(lane, i);
        const int row = kKeysOwn ? tile * 8 + place.col : warp_row + place.row;
        const float weight = weights[lane].x[tile][i];
        float& slope = dp[lane].x[tile][i];
        slope = weight * (slope - stats[kOwnedRows + row]);
        if (launch.softcap != 0 && weight > 0) {
          const float share = (Cta::log2(weight) + stats[row]) * (kLn2 / launch.softcap);
          slope *= 1 - share * share;
        }
      }
    }
  });
}

// Writes the gradients of 16 owned rows, times `scale`, to the slot or adds them to it.
template <int kDim, typename Cta>
CONTEXTILE_HD void write_gradient(Cta& cta, const OwnedBlock& owned, int warp_row,
                                  const DeviceRows<float>& slot, std::int32_t heads, int kv_head,
                                  std::int32_t dim, float scale,
                                  typename Cta::template PerLane<Sums<kDim / 8>>& gradient) {
  const float keep = owned.init ? 0 : 1;
  cta.each_lane([&](int lane) {
    CONTEXTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::int32_t row = owned.begin + warp_row + lane / 4 + half * 8;
      if (row >= owned.end) continue;
      float* const out = in_global_memory(slot.at(row, heads, kv_head));
      const bool is_wide = is_at_multiple_of<2>(out);
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < kDim / 8; ++tile) {
        const int col = tile * 8 + place_in_sum(lane, 0).col;
        const float* const sums = &gradient[lane].x[tile][half * 2];
        if (col < dim) put_pair(out + col, is_wide, keep, scale * sums[0], scale * sums[1]);
      }
    }
  });
}

// The places of a CTA's rows in shared memory.
struct BackwardShared {
  std::uint16_t* first = nullptr;   // Q or K
  std::uint16_t* second = nullptr;  // dO or V
  std::uint16_t* streamed_first = nullptr;
  std::uint16_t* streamed_second = nullptr;
  float* stats = nullptr;
};

// Adds a streamed block to the gradients of one warp.
template <Number kNumber, Gradient kGradient, int kDim, int kValueDim, typename Cta>
CONTEXTILE_HD void add_block(Cta& cta, const Launch& launch, const OwnedBlock& owned,
                             const StreamedBlock& block, int warp_row, const BackwardShared& shared,
                             BackwardRows<Cta, kGradient, kDim, kValueDim>& warp) {
  constexpr bool kKeysOwn = keys_own(kGradient);
  constexpr int kTiles = BackwardRows<Cta, kGradient, kDim, kValueDim>::kTiles;
  typename Cta::template PerLane<Sums<kTiles>> scores;
  // S = owned · streamedᵀ and P.
  multiply_rows<kNumber, kDim, kTiles>(cta, shared.first, warp_row, shared.streamed_first, scores);
  finish_scores<kKeysOwn, kTiles>(cta, launch, block, owned.begin + warp_row, scores);
  weights_of<kKeysOwn, kTiles>(cta, launch, shared.stats, warp_row, scores);
  // dP, dS, and the gradient of the owned rows, dQ or dK.
  if constexpr (has_first(kGradient)) {
    typename Cta::template PerLane<Sums<kTiles>> dp;
    multiply_rows<kNumber, kValueDim, kTiles>(cta, shared.second, warp_row, shared.streamed_second,
                                              dp);
    slopes_of<kKeysOwn, kTiles>(cta, launch, shared.stats, warp_row, scores, dp);
    add_weighted_rows<kNumber, kDim, kTiles>(cta, dp, shared.streamed_first, warp.first);
  }
  // The second gradient of owned keys: dV += P · dO.
  if constexpr (has_second(kGradient)) {
    add_weighted_rows<kNumber, kValueDim, kTiles>(cta, scores, shared.streamed_second, warp.second);
  }
}

template <Gradient kGradient, int kDim, int kValueDim>
CONTEXTILE_HD BackwardShared backward_shared(std::uint16_t* shared) {
  constexpr int kRows = kBackwardRows<kGradient, kDim, kValueDim>;
  BackwardShared places;
  places.first = shared;
  places.second = places.first + kOwnedRows * kDim;
  places.streamed_first = places.second + (has_first(kGradient) ? kOwnedRows * kValueDim : 0);
  places.streamed_second = places.streamed_first + kRows * kDim;
  places.stats = reinterpret_cast<float*>(places.streamed_second + kRows * kValueDim);
  return places;
}

// Does everything one CTA does: loads its own rows, streams the blocks they meet, writes gradients.
template <Number kNumber, Gradient kGradient, int kDim, int kValueDim, typename Cta>
CONTEXTILE_HD void backward_cta(Cta& cta, const Launch& launch, const OwnedBlock& owned,
                                int kv_head, std::uint16_t* shared) {
  static_assert(kHasPass<kGradient, kDim, kValueDim>);
  constexpr bool kKeysOwn = keys_own(kGradient);
  constexpr int kRows = kBackwardRows<kGradient, kDim, kValueDim>;
  const BackwardShared places = backward_shared<kGradient, kDim, kValueDim>(shared);
  const DeviceTile& slot = launch.tiles[owned.tile];
  const std::int32_t heads = kKeysOwn ? 1 : launch.heads;
  const std::int32_t streamed_heads = kKeysOwn ? launch.heads : 1;
  typename Cta::template PerWarp<BackwardRows<Cta, kGradient, kDim, kValueDim>> warps;
  load_rows<kOwnedRows, kDim>(cta, places.first, kKeysOwn ? slot.k : slot.q, heads, kv_head,
                              owned.begin, owned.end, launch.head_dim);
  if constexpr (has_first(kGradient)) {
    load_rows<kOwnedRows, kValueDim>(cta, places.second, kKeysOwn ? slot.v : slot.dout, heads,
                                     kv_head, owned.begin, owned.end, launch.value_dim);
  }
  if (!kKeysOwn) load_stats(cta, launch, slot, kv_head, owned.begin, owned.end, places.stats);
  StreamedBlocks blocks(launch.runs + owned.first_run, owned.num_blocks, kRows);
  for (std::int32_t b = 0; b < owned.num_blocks; ++b) {
    if (b > 0) blocks.advance();
    const StreamedBlock block = blocks.block();
    const DeviceTile& tile = launch.tiles[block.tile];
    load_rows<kRows, kDim>(cta, places.streamed_first, kKeysOwn ? tile.q : tile.k, streamed_heads,
                           kv_head, block.begin, block.end, launch.head_dim);
    load_rows<kRows, kValueDim>(cta, places.streamed_second, kKeysOwn ? tile.dout : tile.v,
                                streamed_heads, kv_head, block.begin, block.end, launch.value_dim);
    if (kKeysOwn) load_stats(cta, launch, tile, kv_head, block.begin, block.end, places.stats);
    cta.wait_for_copies();
    cta.each_warp([&](int w) {
      add_block<kNumber, kGradient, kDim, kValueDim>(cta, launch, owned, block, w * 16, places,
                                                     warps[w]);
    });
    cta.sync();  // the next block takes the place of this one
  }
  cta.wait_for_copies();
  cta.each_warp([&](int w) {
    if constexpr (has_first(kGradient)) {
      write_gradient<kDim>(cta, owned, w * 16, kKeysOwn ? slot.dk : slot.dq, heads, kv_head,
                           launch.head_dim, launch.scale, warps[w].first);
    }
    if constexpr (has_second(kGradient)) {
      write_gradient<kValueDim>(cta, owned, w * 16, slot.dv, heads, kv_head, launch.value_dim, 1,
                                warps[w].second);
    }
  });
}

}  // namespace contextile::cuda
