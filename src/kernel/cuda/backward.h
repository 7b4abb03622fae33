// Backward in two passes, each of which owns what it writes, so that nothing is added atomically:
// query rows own dQ and stream keys, keys own dK and dV and stream query rows. Either way
//   S = owned · streamedᵀ (Q and K),  dP = owned · streamedᵀ (dO and V),  dS = P ∘ (dP - delta),
//   gradient of the owned += dS · streamed, and with keys that own: dV += P · dO.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernel/cuda/tile_steps.h"

namespace contextile::cuda {

// Gradients of 64 owned rows leave registers for the scores and dP of half as many streamed ones.
inline constexpr int kBackwardRows = 32;

// Bytes of shared memory: two tensors of owned and of streamed rows, LSE and delta of query rows.
template <int kDim>
inline constexpr std::size_t kBackwardShared = std::size_t{2 * (kOwnedRows + kBackwardRows)} *
                                                   kDim * sizeof(std::uint16_t) +
                                               2 * kOwnedRows * sizeof(float);

template <typename Cta, int kDim>
struct BackwardRows {
  using Block = typename Cta::template PerLane<Sums<kBackwardRows / 8>>;
  using Gradient = typename Cta::template PerLane<Sums<kDim / 8>>;
  Gradient first;   // dQ or dK
  Gradient second;  // dV
};

// LSE (in units of log2(e)) and delta of query row `begin + at`. A row that attends nothing, or is
// none, has weights exp2(s - inf) = 0.
CONTEXTILE_HD void load_row_stats(const Launch& launch, const DeviceTile& tile, int kv_head,
                                  std::int32_t begin, std::int32_t end, int at, float* stats) {
  const std::int32_t row = begin + at;
  const float lse = row < end ? *tile.lse.at(row, launch.heads, kv_head) : -INFINITY;
  stats[at] = lse == -INFINITY ? INFINITY : lse * kLog2OfE;
  stats[kOwnedRows + at] = lse == -INFINITY ? 0 : *tile.delta.at(row, launch.heads, kv_head);
}

template <typename Cta>
CONTEXTILE_HD void load_stats(Cta& cta, const Launch& launch, const DeviceTile& tile, int kv_head,
                              std::int32_t begin, std::int32_t end, float* stats) {
  cta.each_thread([&](int thread) {
    if (thread < kOwnedRows) load_row_stats(launch, tile, kv_head, begin, end, thread, stats);
  });
}

// Scores become weights, dP becomes dS but for the scale.
template <bool kKeysOwn, int kTiles, typename Cta>
CONTEXTILE_HD void slopes(Cta& cta, const Launch& launch, const float* stats, int warp_row,
                          typename Cta::template PerLane<Sums<kTiles>>& scores,
                          typename Cta::template PerLane<Sums<kTiles>>& dp) {
  cta.each_lane([&](int lane) {
    CONTEXTILE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      CONTEXTILE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const Place place = place_in_sum(lane, i);
        const int row = kKeysOwn ? tile * 8 + place.col : warp_row + place.row;
        float& s = scores[lane].x[tile][i];
        float& slope = dp[lane].x[tile][i];
        const float weight = Cta::exp2(s - stats[row]);
        slope = weight * (slope - stats[kOwnedRows + row]);
        if (launch.softcap != 0 && weight > 0) {
          const float share = s * (kLn2 / launch.softcap);
          slope *= 1 - share * share;
        }
        s = weight;
      }
    }
  });
}

// Gradients of 16 owned rows, times `scale`, into the slot or added to it.
template <int kDim, typename Cta>
CONTEXTILE_HD void write_gradient(Cta& cta, const OwnedBlock& owned, int warp_row,
                                  const DeviceRows<float>& slot, std::int32_t heads, int kv_head,
                                  std::int32_t dim, float scale,
                                  typename Cta::template PerLane<Sums<kDim / 8>>& gradient) {
  cta.each_lane([&](int lane) {
    CONTEXTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::int32_t row = owned.begin + warp_row + lane / 4 + half * 8;
      if (row >= owned.end) continue;
      float* const out = slot.at(row, heads, kv_head);
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < kDim / 8; ++tile) {
        CONTEXTILE_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int col = tile * 8 + place_in_sum(lane, i).col;
          if (col >= dim) continue;
          const float part = scale * gradient[lane].x[tile][half * 2 + i];
          out[col] = owned.init ? part : out[col] + part;
        }
      }
    }
  });
}

// What one warp does with a streamed block.
template <Number kNumber, int kDim, bool kKeysOwn, typename Cta>
CONTEXTILE_HD void add_block(Cta& cta, const Launch& launch, const OwnedBlock& owned,
                             const StreamedBlock& block, int warp_row,
                             const std::uint16_t* const (&shared)[4], const float* stats,
                             BackwardRows<Cta, kDim>& warp) {
  constexpr int kTiles = kBackwardRows / 8;
  typename BackwardRows<Cta, kDim>::Block scores;
  typename BackwardRows<Cta, kDim>::Block dp;
  multiply_rows<kNumber, kDim, kTiles>(cta, shared[0], warp_row, shared[2], scores);
  const std::int32_t first_row = owned.begin + warp_row;
  if (block.num_bands == 0) {
    finish_scores<false, kKeysOwn, kTiles>(cta, launch, block, first_row, scores);
  } else {
    finish_scores<true, kKeysOwn, kTiles>(cta, launch, block, first_row, scores);
  }
  multiply_rows<kNumber, kDim, kTiles>(cta, shared[1], warp_row, shared[3], dp);
  slopes<kKeysOwn, kTiles>(cta, launch, stats, warp_row, scores, dp);
  add_weighted_rows<kNumber, kDim, kTiles>(cta, dp, shared[2], warp.first);
  if constexpr (kKeysOwn) {
    add_weighted_rows<kNumber, kDim, kTiles>(cta, scores, shared[3], warp.second);
  }
}

template <Number kNumber, int kDim, bool kKeysOwn, typename Cta>
CONTEXTILE_HD void backward_cta(Cta& cta, const Launch& launch, const OwnedBlock& owned,
                                int kv_head, std::uint16_t* shared) {
  std::uint16_t* const first = shared;  // Q or K
  std::uint16_t* const second = first + kOwnedRows * kDim;
  std::uint16_t* const streamed_first = second + kOwnedRows * kDim;
  std::uint16_t* const streamed_second = streamed_first + kBackwardRows * kDim;
  auto* const stats = reinterpret_cast<float*>(streamed_second + kBackwardRows * kDim);
  const std::uint16_t* const all[4] = {first, second, streamed_first, streamed_second};
  const DeviceTile& slot = launch.tiles[owned.tile];
  const std::int32_t heads = kKeysOwn ? 1 : launch.heads;
  const std::int32_t streamed_heads = kKeysOwn ? launch.heads : 1;
  typename Cta::template PerWarp<BackwardRows<Cta, kDim>> warps;
  load_rows<kOwnedRows, kDim>(cta, first, kKeysOwn ? slot.k : slot.q, heads, kv_head, owned.begin,
                              owned.end, launch.head_dim);
  load_rows<kOwnedRows, kDim>(cta, second, kKeysOwn ? slot.v : slot.dout, heads, kv_head,
                              owned.begin, owned.end, launch.value_dim);
  if (!kKeysOwn) load_stats(cta, launch, slot, kv_head, owned.begin, owned.end, stats);
  for (std::int32_t b = 0; b < owned.num_blocks; ++b) {
    const StreamedBlock block = launch.blocks[owned.first_block + b];
    const DeviceTile& tile = launch.tiles[block.tile];
    load_rows<kBackwardRows, kDim>(cta, streamed_first, kKeysOwn ? tile.q : tile.k, streamed_heads,
                                   kv_head, block.begin, block.end, launch.head_dim);
    load_rows<kBackwardRows, kDim>(cta, streamed_second, kKeysOwn ? tile.dout : tile.v,
                                   streamed_heads, kv_head, block.begin, block.end,
                                   launch.value_dim);
    if (kKeysOwn) load_stats(cta, launch, tile, kv_head, block.begin, block.end, stats);
    cta.wait_for_copies();
    cta.each_warp([&](int w) {
      add_block<kNumber, kDim, kKeysOwn>(cta, launch, owned, block, w * 16, all, stats, warps[w]);
    });
    cta.sync();  // the next block takes the place of this one
  }
  cta.wait_for_copies();
  cta.each_warp([&](int w) {
    write_gradient<kDim>(cta, owned, w * 16, kKeysOwn ? slot.dk : slot.dq, heads, kv_head,
                         launch.head_dim, launch.scale, warps[w].first);
    if constexpr (kKeysOwn) {
      write_gradient<kDim>(cta, owned, w * 16, slot.dv, heads, kv_head, launch.value_dim, 1,
                           warps[w].second);
    }
  });
}

}  // namespace contextile::cuda
