// Forward: a CTA owns 64 flat query rows of one slot and meets the keys of all its tiles in one
// pass, by online softmax in fp32.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernel/cuda/score_steps.h"
#include "kernel/cuda/tile_shapes.h"
#include "kernel/cuda/tile_steps.h"

namespace contextile::cuda {

// The data that a warp keeps from block to block. A lane has parts of two rows, 8 apart.
template <typename Cta, int kKeys, int kValueDim>
struct ForwardRows {
  struct TopAndSum {
    float top[2] = {-INFINITY, -INFINITY};  // the largest score
    float sum[2] = {0, 0};                  // over the quad of lanes that share the row
  };
  typename Cta::template PerLane<Sums<kKeys / 8>> scores;
  typename Cta::template PerLane<Sums<kValueDim / 8>> out;  // not yet divided by the sum
  typename Cta::template PerLane<TopAndSum> rows;
};

// True if a warp keeps its query rows in registers instead of reading them for every block.
template <int kDim>
inline constexpr bool kKeepsQueries = kDim <= 128;

// Turns scores into weights. The sums so far of a row are rescaled if its largest score rises.
template <int kKeys, int kValueDim, typename Cta>
CONTEXTILE_HD void weigh(Cta& cta, float factor, ForwardRows<Cta, kKeys, kValueDim>& warp) {
  constexpr int kTiles = kKeys / 8;
  CONTEXTILE_UNROLL
  for (int half = 0; half < 2; ++half) {
    typename Cta::template PerLane<float> top;
    cta.each_lane([&](int lane) {
      top[lane] = warp.rows[lane].top[half];
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        const float* pair = &warp.scores[lane].x[tile][half * 2];
        top[lane] = std::fmax(top[lane], std::fmax(pair[0], pair[1]));
      }
    });
    cta.quad_max(top);
    typename Cta::template PerLane<float> sum;
    cta.each_lane([&](int lane) {
      auto& row = warp.rows[lane];
      const float base = top[lane] == -INFINITY ? 0 : top[lane];  // an empty row weighs nothing
      const float offset = base * factor;
      const float keep = Cta::exp2(std::fma(row.top[half], factor, -offset));
      row.top[half] = top[lane];
      row.sum[half] *= keep;
      sum[lane] = 0;
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        float* pair = &warp.scores[lane].x[tile][half * 2];
        pair[0] = Cta::exp2(std::fma(pair[0], factor, -offset));
        pair[1] = Cta::exp2(std::fma(pair[1], factor, -offset));
        sum[lane] += pair[0] + pair[1];
      }
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < kValueDim / 8; ++tile) {
        warp.out[lane].x[tile][half * 2] *= keep;
        warp.out[lane].x[tile][half * 2 + 1] *= keep;
      }
    });
    cta.quad_sum(sum);
    cta.each_lane([&](int lane) { warp.rows[lane].sum[half] += sum[lane]; });
  }
}

// The factors by which a row's result joins its slot: o := keep · o + weight · out, lse := lse.
struct RowMerge {
  float lse = -INFINITY;
  float keep = 0;  // 0: the slot is not read
  float weight = 0;
};

CONTEXTILE_HD RowMerge merge_row(float top, float sum, float held_lse) {
  const float lse = sum > 0 ? (top + std::log2(sum)) * kLn2 : -INFINITY;
  if (held_lse == -INFINITY) return {lse, 0, sum > 0 ? 1 / sum : 0};
  if (lse == -INFINITY) return {held_lse, 1, 0};
  const float larger = std::fmax(lse, held_lse);
  const float merged = larger + std::log1p(std::exp(-std::fabs(lse - held_lse)));
  return {merged, std::exp(held_lse - merged), std::exp(lse - merged) / sum};
}

// Merges a warp's rows into their slot: their top, sum and output.
template <int kValueDim, typename Cta, typename Rows>
CONTEXTILE_HD void write_rows(Cta& cta, const Launch& launch, const OwnedBlock& owned, int kv_head,
                              int warp_row, const Rows& rows,
                              const typename Cta::template PerLane<Sums<kValueDim / 8>>& out) {
  const DeviceTile& slot = launch.tiles[owned.tile];
  const std::int32_t value_dim = launch.value_dim;
  // Every lane of a quad reads the LSE of its rows before one of them writes it.
  typename Cta::template PerLane<RowMerge> merges[2];
  cta.each_lane([&](int lane) {
    CONTEXTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::int32_t row = owned.begin + warp_row + lane / 4 + half * 8;
      if (row >= owned.end) continue;
      const float held = owned.init ? -INFINITY : *slot.lse.at(row, launch.heads, kv_head);
      merges[half][lane] =
          merge_row(rows[lane].top[half] * exponent_factor(launch), rows[lane].sum[half], held);
    }
  });
  cta.sync_warp();
  cta.each_lane([&](int lane) {
    CONTEXTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::int32_t row = owned.begin + warp_row + lane / 4 + half * 8;
      if (row >= owned.end) continue;
      const RowMerge& merge = merges[half][lane];
      float* const o = in_global_memory(slot.o.at(row, launch.heads, kv_head));
      const bool is_wide = is_at_multiple_of<2>(o);
      if (lane % 4 == 0) *slot.lse.at(row, launch.heads, kv_head) = merge.lse;
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < kValueDim / 8; ++tile) {
        const int col = tile * 8 + place_in_sum(lane, 0).col;
        const float* const sums = &out[lane].x[tile][half * 2];
        if (col >= value_dim) continue;
        put_pair(o + col, is_wide, merge.keep, merge.weight * sums[0], merge.weight * sums[1]);
      }
    }
  });
}

// Does everything one CTA does. Keys of the next block are on their way while weights are
// multiplied with values, and values while scores are computed.
template <Number kNumber, int kDim, int kValueDim, typename Cta>
CONTEXTILE_HD void forward_cta(Cta& cta, const Launch& launch, const OwnedBlock& owned, int kv_head,
                               std::uint16_t* shared) {
  constexpr int kKeys = kForwardKeys<kDim, kValueDim>;
  std::uint16_t* const q = shared;
  std::uint16_t* const k = q + kOwnedRows * kDim;
  std::uint16_t* const v = k + kKeys * kDim;
  StreamedBlocks blocks(launch.runs + owned.first_run, owned.num_blocks, kKeys);
  // Tensors are copied out of their tile, whose memory would be read again for every copy of rows.
  using Tensor = DeviceRows<const std::uint16_t>;
  const auto load_keys = [&](const StreamedBlock& block) {
    const Tensor keys = launch.tiles[block.tile].k;
    load_rows<kKeys, kDim>(cta, k, keys, 1, kv_head, block.begin, block.end, launch.head_dim);
  };
  typename Cta::template PerWarp<ForwardRows<Cta, kKeys, kValueDim>> warps;
  const Tensor queries = launch.tiles[owned.tile].q;
  load_rows<kOwnedRows, kDim>(cta, q, queries, launch.heads, kv_head, owned.begin, owned.end,
                              launch.head_dim);
  StreamedBlock next = blocks.block();
  if (owned.num_blocks > 0) load_keys(next);
  typename Cta::template PerWarp<KeptRows<Cta, kKeepsQueries<kDim> ? kDim : 16>> kept;
  if constexpr (kKeepsQueries<kDim>) {
    cta.wait_for_copies();
    cta.each_warp([&](int w) { keep_rows<kDim>(cta, q, w * 16, kept[w]); });
  }
  for (std::int32_t b = 0; b < owned.num_blocks; ++b) {
    const StreamedBlock block = next;
    cta.wait_for_copies();  // keys have arrived, no warp reads values
    const Tensor values = launch.tiles[block.tile].v;
    load_rows<kKeys, kValueDim>(cta, v, values, 1, kv_head, block.begin, block.end,
                                launch.value_dim);
    cta.each_warp([&](int w) {
      auto& warp = warps[w];
      if constexpr (kKeepsQueries<kDim>) {
        multiply_kept<kNumber, kDim, kKeys / 8>(cta, kept[w], k, warp.scores);
      } else {
        multiply_rows<kNumber, kDim, kKeys / 8>(cta, q, w * 16, k, warp.scores);
      }
      finish_scores<false, kKeys / 8>(cta, launch, block, owned.begin + w * 16, warp.scores);
      weigh<kKeys, kValueDim>(cta, exponent_factor(launch), warp);
    });
    cta.wait_for_copies();  // values have arrived, no warp reads keys
    if (b + 1 < owned.num_blocks) {
      blocks.advance();
      next = blocks.block();
      load_keys(next);
    }
    cta.each_warp([&](int w) {
      add_weighted_rows<kNumber, kValueDim, kKeys / 8>(cta, warps[w].scores, v, warps[w].out);
    });
  }
  cta.wait_for_copies();
  cta.each_warp([&](int w) {
    write_rows<kValueDim>(cta, launch, owned, kv_head, w * 16, warps[w].rows, warps[w].out);
  });
}

}  // namespace contextile::cuda
