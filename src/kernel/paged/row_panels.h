// Scores, weights and sums of the rows of one panel. All of it computes with floats, so it does not
// depend on the dtype of the cache. Include this only from the file of an instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernel/cpu/inline.h"
#include "kernel/paged/paged_target.h"

namespace contextile {

inline constexpr float kNothing = -std::numeric_limits<float>::infinity();

// Rows whose values are summed.
struct RowSums {
  float* out = nullptr;  // [rows][stride], at the first dim
  std::ptrdiff_t stride = 0;
  const float* weights = nullptr;  // of the first row
  const float* shrink = nullptr;
};

// A panel of `vectors` vectors with n keys each: kRows rows. Keys and values are floats in blocks.
template <class V, int n, int vectors>
struct RowPanel {
  using Float = typename V::Float;

  static constexpr int kLanes = V::kLanes * vectors;
  static constexpr int kRows = kLanes / n;
  // Keys whose sums are in registers at a time.
  static constexpr int kTile = V::kLanes / vectors;

  // Adds to the scores of kTile keys their products of `dim` dims, a multiple of 16.
  CONTEXTILE_INLINE static void score_dims(const float* q, const float* keys, std::int32_t dim,
                                           bool is_first, float* scores) {
    Float sums[kTile][vectors];
#pragma GCC unroll 16
    for (int j = 0; j < kTile; ++j) {
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[j][v] = V::zero();
    }
#pragma GCC unroll 2
    for (std::int32_t d = 0; d < dim; ++d, q += kLanes) {
      Float row[vectors];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) row[v] = V::load(q + v * V::kLanes);
#pragma GCC unroll 16
      for (int j = 0; j < kTile; ++j) {
        const Float k = V::set(keys[j * kPagedBlock + d]);
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) sums[j][v] = V::fma(row[v], k, sums[j][v]);
      }
    }
#pragma GCC unroll 16
    for (int j = 0; j < kTile; ++j) {
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        float* to = scores + j * kRows + v * V::kLanes;
        V::store(to, is_first ? sums[j][v] : V::add(V::load(to), sums[j][v]));
      }
    }
  }

  // Computes the scores of `count` keys, rounded up to kTile, of a panel with one key each; a block
  // of keys has `stride` floats. Sums of more than kPagedBlock products in a row would be too
  // inexact.
  [[gnu::noinline]] static void score(const float* q, const float* keys, std::ptrdiff_t stride,
                                      std::int32_t dim, int count, float* scores) {
    static_assert(n == 1);
    for (std::int32_t d = 0; d < dim; d += kPagedBlock, keys += stride) {
      const std::int32_t size = kPagedBlock < dim - d ? kPagedBlock : dim - d;
      for (int j = 0; j < count; j += kTile) {
        score_dims(q + static_cast<std::ptrdiff_t>(d) * kLanes, keys + j * kPagedBlock, size,
                   d == 0, scores + j * kRows);
      }
    }
  }

  // Turns the scores of `count` keys, a multiple of n, into weights, and returns by how much
  // earlier sums shrink.
  [[gnu::noinline]] static void weigh(float* scores, int count, float* top, float* sum,
                                      float* shrink) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      float* const its = scores + v * V::kLanes;
      const Float before = V::load(top + v * V::kLanes);
      Float most = before;
      for (int j = 0; j < count; j += n) most = V::max(V::load(its + j * kRows), most);
      most = V::template most_lanes<n>(most);
      V::store(top + v * V::kLanes, most);
      // Without any key yet, weights are 0 instead of NaN.
      const Float from = V::select(V::less(V::set(kNothing), most), most, V::zero());
      const Float less = V::exp2(V::sub(before, from));
      Float total = V::mul(V::load(sum + v * V::kLanes), less);
      for (int j = 0; j < count; j += n) {
        const Float weight = V::exp2(V::sub(V::load(its + j * kRows), from));
        V::store(its + j * kRows, weight);
        total = V::add(total, weight);
      }
      V::store(sum + v * V::kLanes, total);
      V::store(shrink + v * V::kLanes, less);
    }
  }

  // Adds `count` values to `rows` rows and `wide` vectors.
  template <int rows, int wide>
  CONTEXTILE_INLINE static void add(const RowSums& its, const float* values, int count) {
    Float sums[rows][wide];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const Float shrink = V::set(its.shrink[r * n]);
#pragma GCC unroll 4
      for (int i = 0; i < wide; ++i) {
        sums[r][i] = V::mul(V::load(its.out + r * its.stride + i * V::kLanes), shrink);
      }
    }
    const auto add_key = [&](const float* weights) CONTEXTILE_INLINE_LAMBDA {
      Float value[wide];
#pragma GCC unroll 4
      for (int i = 0; i < wide; ++i) value[i] = V::load(values + i * V::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const Float weight = V::set(weights[r * n]);
#pragma GCC unroll 4
        for (int i = 0; i < wide; ++i) sums[r][i] = V::fma(weight, value[i], sums[r][i]);
      }
      values += kPagedBlock;
    };
    const float* weights = its.weights;
    int j = 0;
    for (; j + n <= count; j += n, weights += kLanes) {
#pragma GCC unroll 4
      for (int i = 0; i < n; ++i) add_key(weights + i);
    }
    for (; j < count; ++j, ++weights) add_key(weights);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < wide; ++i) {
        V::store(its.out + r * its.stride + i * V::kLanes, sums[r][i]);
      }
    }
  }

  // Adds `count` values of `size` dims, at most kPagedBlock, to all rows.
  [[gnu::noinline]] static void add_values(RowSums its, const float* values, std::int32_t size,
                                           int count) {
    constexpr int kSumRows = V::kLanes == 16 && kRows >= 8 ? 8 : 4;
    constexpr int kWide = V::kLanes == 16 && kSumRows == 4 ? 4 : 2;
    for (std::int32_t d = 0; d < size;) {
      const bool is_wide = d + kWide * V::kLanes <= size;
      RowSums some = its;
      for (int r = 0; r < kRows; r += kSumRows) {
        if (is_wide) {
          add<kSumRows, kWide>(some, values + d, count);
        } else {
          add<kSumRows, 1>(some, values + d, count);
        }
        some.out += kSumRows * its.stride;
        some.weights += kSumRows * n;
        some.shrink += kSumRows * n;
      }
      const std::int32_t done = is_wide ? kWide * V::kLanes : V::kLanes;
      d += done;
      its.out += done;
    }
  }
};

// Calls f(RowPanel) for the kind of a panel with one key.
template <class V, class F>
CONTEXTILE_INLINE void with_whole_panel(const PagedPanel& panel, const F& f) {
  if (panel.rows > V::kLanes) return f(RowPanel<V, 1, 2>());
  f(RowPanel<V, 1, 1>());
}

// Calls f(RowPanel) for the kind of any panel.
template <class V, class F>
CONTEXTILE_INLINE void with_panel(const PagedPanel& panel, const F& f) {
  if constexpr (V::kLanes == 16) {
    if (panel.keys == 4) return f(RowPanel<V, 4, 1>());
  }
  if constexpr (V::kLanes >= 8) {
    if (panel.keys == 2) return f(RowPanel<V, 2, 1>());
  }
  with_whole_panel<V>(panel, f);
}

}  // namespace contextile
