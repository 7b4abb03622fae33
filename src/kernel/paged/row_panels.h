// Scores, weights and sums of the rows of one panel. All of it computes with floats, so it does not
// depend on the dtype of the cache. Include this only from the file of an instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernel/cpu/inline.h"
#include "kernel/paged/fetch_ahead.h"
#include "kernel/paged/paged_target.h"

namespace contextile {

inline constexpr float kNothing = -std::numeric_limits<float>::infinity();

// The values of each head, `stride` apart.
template <typename T>
struct HeadsOf {
  T* first = nullptr;
  std::ptrdiff_t stride = 0;
  int heads = 1;

  [[nodiscard]] CONTEXTILE_INLINE T* at(int head) const { return first + head * stride; }
};

// Rows whose values are summed.
struct RowSums {
  float* out = nullptr;  // [rows][stride], at the first dim
  std::ptrdiff_t stride = 0;
  const float* weights = nullptr;  // of the first row
  const float* shrink = nullptr;   // [rows][keys], at the first key

  // Loads the sums of `rows` rows of a panel with n keys, `wide` vectors each, and shrinks them.
  template <class V, int n, int rows, int wide>
  CONTEXTILE_INLINE void load(typename V::Float (&sums)[rows][wide]) const {
    const float* row = out;
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r, row += stride) {
      const typename V::Float factor = V::set(shrink[r * n]);
#pragma GCC unroll 4
      for (int i = 0; i < wide; ++i) sums[r][i] = V::mul(V::load(row + i * V::kLanes), factor);
    }
  }

  template <class V, int rows, int wide>
  CONTEXTILE_INLINE void store(const typename V::Float (&sums)[rows][wide]) const {
    float* row = out;
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r, row += stride) {
#pragma GCC unroll 4
      for (int i = 0; i < wide; ++i) V::store(row + i * V::kLanes, sums[r][i]);
    }
  }
};

// The same rows of all heads.
struct HeadsOfRows {
  RowSums first;
  std::ptrdiff_t out_stride = 0;  // from one head to the next
  std::ptrdiff_t weights_stride = 0;
  std::ptrdiff_t shrink_stride = 0;
  int heads = 1;

  [[nodiscard]] CONTEXTILE_INLINE RowSums at(int head) const {
    return {first.out + head * out_stride, first.stride, first.weights + head * weights_stride,
            first.shrink + head * shrink_stride};
  }
};

// A panel of `vectors` vectors with n keys each: kRows rows. Keys and values are floats in blocks.
template <class V, int n, int vectors>
struct RowPanel {
  using Float = typename V::Float;

  static constexpr int kLanes = V::kLanes * vectors;
  static constexpr int kRows = kLanes / n;
  // Keys whose sums are in registers at a time.
  static constexpr int kTile = V::kLanes / vectors;

  // Adds to the scores of kTile keys their products of `dim` dims, a multiple of 16. Fetches a line
  // with every `pause` dims, of which `dim` is a multiple.
  CONTEXTILE_INLINE static void score_dims(const float* q, const float* keys, std::int32_t dim,
                                           bool is_first, FetchAhead& ahead, std::int32_t pause,
                                           float* scores) {
    Float sums[kTile][vectors];
#pragma GCC unroll 16
    for (int j = 0; j < kTile; ++j) {
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[j][v] = V::zero();
    }
    for (std::int32_t d = 0; d < dim;) {
      ahead.fetch_lines<1>();
      const std::int32_t end = d + pause;
#pragma GCC unroll 2
      for (; d < end; ++d, q += kLanes) {
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
                                      std::int32_t dim, int count, FetchAhead& ahead,
                                      std::int32_t pause, float* scores) {
    static_assert(n == 1);
    FetchAhead mine = ahead;
    for (std::int32_t d = 0; d < dim; d += kPagedBlock, keys += stride) {
      const std::int32_t size = kPagedBlock < dim - d ? kPagedBlock : dim - d;
      for (int j = 0; j < count; j += kTile) {
        score_dims(q + static_cast<std::ptrdiff_t>(d) * kLanes, keys + j * kPagedBlock, size,
                   d == 0, mine, pause, scores + j * kRows);
      }
    }
    ahead = mine;
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
    its.template load<V, n>(sums);
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
    its.template store<V>(sums);
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
