// Merges the results of runs of keys into those of rows, in the order of the keys: a warp for each
// row.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernel/cuda/paged_attend.h"
#include "kernel/cuda/paged_launch.h"

namespace contextile::cuda {

inline constexpr int kPagedMostDim = 512;  // largest value dim

// Number of blocks of threads that take the rows of one merge, kWarps rows each.
inline constexpr int kPagedMergeBlocks = kPagedRows / kWarps;

// Merges the parts of a flat row and writes its O and LSE.
CONTEXTILE_HD void merge_parts(const PagedLaunch& launch, const PagedMerge& merge, int kv_head,
                               std::int32_t flat, int lane) {
  const std::int32_t rows = merge.end - merge.begin;
  const auto part = [&](std::int32_t p) {
    const std::int64_t row =
        std::int64_t{merge.first_part} + std::int64_t{p} * rows + flat - merge.begin;
    return row * launch.kv_heads + kv_head;
  };
  float top = -INFINITY;
  for (std::int32_t p = 0; p < merge.num_parts; ++p) {
    top = std::fmax(top, launch.part_lse[part(p)]);
  }
  const float base = top == -INFINITY ? 0 : top;
  float sum = 0;
  float x[kPagedMostDim / kLanes] = {};
  for (std::int32_t p = 0; p < merge.num_parts; ++p) {
    const float weight = std::exp(launch.part_lse[part(p)] - base);
    const float* const o = launch.part_o + part(p) * launch.value_dim;
    sum += weight;
    CONTEXTILE_UNROLL
    for (int i = 0; i < kPagedMostDim / kLanes; ++i) {
      const int d = i * kLanes + lane;
      if (d < launch.value_dim) x[i] += weight * o[d];
    }
  }
  const float share = sum > 0 ? 1 / sum : 0;
  float* const out = rows_from(launch.o, merge.first_row).at(flat, launch.heads, kv_head);
  CONTEXTILE_UNROLL
  for (int i = 0; i < kPagedMostDim / kLanes; ++i) {
    const int d = i * kLanes + lane;
    if (d < launch.value_dim) out[d] = share * x[i];
  }
  if (lane == 0) {
    *rows_from(launch.lse, merge.first_row).at(flat, launch.heads, kv_head) =
        sum > 0 ? base + std::log(sum) : -INFINITY;
  }
}

// `block` counts KV head by KV head, kPagedMergeBlocks each.
template <typename Cta>
CONTEXTILE_HD void paged_merge_cta(Cta& cta, const PagedLaunch& launch, const PagedMerge& merge,
                                   int block) {
  cta.each_warp([&](int w) {
    const std::int32_t flat = merge.begin + block % kPagedMergeBlocks * kWarps + w;
    if (flat >= merge.end) return;
    cta.each_lane(
        [&](int lane) { merge_parts(launch, merge, block / kPagedMergeBlocks, flat, lane); });
  });
}

}  // namespace contextile::cuda
