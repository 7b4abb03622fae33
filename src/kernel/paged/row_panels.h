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

// Rows of keys, or of values, that are fetched into the cache because they are read later. Hardware
// does not foresee the next page.
struct Fetch {
  const std::byte* const* rows = nullptr;
  std::int32_t element_bytes = 0;  // 0: nothing is fetched

  // Fetches elements [begin, end) of `num` rows from `first` on.
  CONTEXTILE_INLINE void run(int first, int num, std::int32_t begin, std::int32_t end) const {
    const std::int32_t last = end * element_bytes;
    for (std::int32_t byte = (begin * element_bytes + 63) / 64 * 64; byte < last; byte += 64) {
#pragma GCC unroll 16
      for (int j = 0; j < num; ++j) __builtin_prefetch(rows[first + j] + byte, 0, 2);
    }
  }
};

// Rows whose values are summed.
struct RowSums {
  float* out = nullptr;  // [rows][stride], at the first dim
  std::ptrdiff_t stride = 0;
  const float* weights = nullptr;  // of the first row
  const float* shrink = nullptr;
};

// A panel of `vectors` vectors with n keys each: kRows rows.
template <class V, int n, int vectors>
struct RowPanel {
  using Float = typename V::Float;

  static constexpr int kLanes = V::kLanes * vectors;
  static constexpr int kRows = kLanes / n;
  // Keys whose sums are in registers at a time, and steps of n dims between two loads of their
  // addresses.
  static constexpr int kTile = V::kLanes / vectors;
  static constexpr int kSteps = (V::kLanes == 16 ? 8 : 4) / vectors;

  // Adds the products of dims [d, d + kCount·n) to the sums.
  template <int kCount>
  CONTEXTILE_INLINE static void multiply(const float* q, const float* const* keys, std::int32_t d,
                                         Float (&sums)[kTile][vectors]) {
    Float row[kCount][vectors];
#pragma GCC unroll 8
    for (int i = 0; i < kCount; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        row[i][v] = V::load(q + (d / n + i) * kLanes + v * V::kLanes);
      }
    }
#pragma GCC unroll 16
    for (int j = 0; j < kTile; ++j) {
      const float* key = keys[j] + d;
#pragma GCC unroll 8
      for (int i = 0; i < kCount; ++i) {
        const Float k = V::template load_lanes<n>(key + i * n);
#pragma GCC unroll 2
        for (int v = 0; v < vectors; ++v) sums[j][v] = V::fma(row[i][v], k, sums[j][v]);
      }
    }
  }

  // Adds to the scores of kTile keys their products of dims [d, end), and fetches as many dims of
  // other keys.
  CONTEXTILE_INLINE static void score_dims(const float* q, const float* const* keys, std::int32_t d,
                                           std::int32_t end, const Fetch& fetch, int first,
                                           float* scores) {
    Float sums[kTile][vectors];
#pragma GCC unroll 16
    for (int j = 0; j < kTile; ++j) {
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[j][v] = V::zero();
    }
    const bool is_first = d == 0;
    for (; d + kSteps * n <= end; d += kSteps * n) {
      multiply<kSteps>(q, keys, d, sums);
      fetch.run(first, kTile, d, d + kSteps * n);
    }
    for (; d < end; d += n) {
      multiply<1>(q, keys, d, sums);
      fetch.run(first, kTile, d, d + n);
    }
#pragma GCC unroll 16
    for (int j = 0; j < kTile; j += n) {
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        float* to = scores + j * kRows + v * V::kLanes;
        const Float sum = n == 1 ? sums[j][v] : V::template sum_lanes<n>(&sums[j][v]);
        V::store(to, is_first ? sum : V::add(V::load(to), sum));
      }
    }
  }

  // Computes the scores of kTile keys, and fetches as many rows from row `first` on. Sums of more
  // than kMostDims products in a row would be too inexact.
  [[gnu::noinline]] static void score(const float* q, const float* const* keys, std::int32_t dim,
                                      const Fetch& fetch, int first, float* scores) {
    constexpr std::int32_t kMostDims = 128;
    for (std::int32_t d = 0; d < dim; d += kMostDims) {
      const std::int32_t end = d + kMostDims < dim ? d + kMostDims : dim;
      score_dims(q, keys, d, end, fetch, first, scores);
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

  // Adds `count` values to `rows` rows and `wide` vectors; key j's are at values[j] + d. Fetches as
  // many dims of other values.
  template <int rows, int wide>
  CONTEXTILE_INLINE static void add(const RowSums& its, const float* const* values,
                                    std::ptrdiff_t d, int count, const Fetch& fetch) {
    Float sums[rows][wide];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const Float shrink = V::set(its.shrink[r * n]);
#pragma GCC unroll 4
      for (int i = 0; i < wide; ++i) {
        sums[r][i] = V::mul(V::load(its.out + r * its.stride + i * V::kLanes), shrink);
      }
    }
    const auto add_key = [&](const float* weights, const float* from) CONTEXTILE_INLINE_LAMBDA {
      Float value[wide];
#pragma GCC unroll 4
      for (int i = 0; i < wide; ++i) value[i] = V::load(from + i * V::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const Float weight = V::set(weights[r * n]);
#pragma GCC unroll 4
        for (int i = 0; i < wide; ++i) sums[r][i] = V::fma(weight, value[i], sums[r][i]);
      }
    };
    const float* weights = its.weights;
    int j = 0;
    for (; j + n <= count; j += n, weights += kLanes) {
#pragma GCC unroll 4
      for (int i = 0; i < n; ++i) {
        add_key(weights + i, values[j + i] + d);
        fetch.run(j + i, 1, static_cast<std::int32_t>(d),
                  static_cast<std::int32_t>(d) + wide * V::kLanes);
      }
    }
    for (; j < count; ++j, ++weights) add_key(weights, values[j] + d);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < wide; ++i) {
        V::store(its.out + r * its.stride + i * V::kLanes, sums[r][i]);
      }
    }
  }

  // Adds `count` values of `size` dims to all rows. Fetches as many dims of other values.
  [[gnu::noinline]] static void add_values(RowSums its, const float* const* values,
                                           std::int32_t size, int count, Fetch fetch) {
    constexpr int kSumRows = V::kLanes == 16 && kRows >= 8 ? 8 : 4;
    constexpr int kWide = V::kLanes == 16 && kSumRows == 4 ? 4 : 2;
    for (int r = 0; r < kRows; r += kSumRows) {
      std::int32_t d = 0;
      RowSums some = its;
      for (; d + kWide * V::kLanes <= size; d += kWide * V::kLanes) {
        add<kSumRows, kWide>(some, values, d, count, fetch);
        some.out += kWide * V::kLanes;
      }
      for (; d < size; d += V::kLanes) {
        add<kSumRows, 1>(some, values, d, count, fetch);
        some.out += V::kLanes;
      }
      fetch.element_bytes = 0;
      its.out += kSumRows * its.stride;
      its.weights += kSumRows * n;
      its.shrink += kSumRows * n;
    }
  }
};

// Returns true if the queries of a panel lie row by row, [rows][head_dim], instead of in lanes.
template <class V>
CONTEXTILE_INLINE bool is_plain(const PagedPanel& panel) {
  return V::kLanes == 16 && panel.keys == 4;
}

// Four rows on vectors of 16 lanes: too few for queries in lanes, which would need cached elements
// as floats in memory. Dims are in lanes instead, and elements are widened in registers.
template <class V, KvDtype dtype>
struct FourRows {
  using Float = typename V::Float;
  static constexpr std::ptrdiff_t kBytes = bytes_per_element(dtype);

  // Adds the products of two vectors of four keys and of four rows.
  CONTEXTILE_INLINE static void multiply(const float* q, std::int32_t dim,
                                         const Float (&keys)[4][2], Float (&sums)[16]) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        const Float row = V::load(q + static_cast<std::ptrdiff_t>(r) * dim + i * V::kLanes);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) sums[r * 4 + j] = V::fma(row, keys[j][i], sums[r * 4 + j]);
      }
    }
  }

  // Computes the scores of four keys; `dim` is a multiple of kPagedGroup. Fetches other rows.
  [[gnu::noinline]] static void score(const float* q, const std::byte* const* keys,
                                      std::int32_t dim, const Fetch& fetch, int first,
                                      float* scores) {
    Float sums[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) sums[i] = V::zero();
    for (std::int32_t d = 0; d < dim; d += kPagedGroup) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        Float some[4][2];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          V::template widen_half<dtype>(keys[j] + d * kBytes, half, &some[j][0]);
        }
        multiply(q + d + half * 32, dim, some, sums);
      }
      fetch.run(first, 4, d, d + kPagedGroup);
    }
    V::store(scores, V::sum_each(sums));
  }

  // Adds `count` values of kPagedGroup dims to the rows; fetches other rows.
  [[gnu::noinline]] static void add(const RowSums& its, const std::byte* const* values, int count,
                                    const Fetch& fetch) {
    Float sums[4][4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const Float shrink = V::set(its.shrink[r * 4]);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        sums[r][i] = V::mul(V::load(its.out + r * its.stride + i * V::kLanes), shrink);
      }
    }
    for (int j = 0; j < count; ++j) {
      const float* weights = its.weights + j / 4 * 16 + j % 4;
      Float value[4];
      V::template widen_half<dtype>(values[j], 0, &value[0]);
      V::template widen_half<dtype>(values[j], 1, &value[2]);
      for (std::ptrdiff_t byte = 0; byte < kPagedGroup * fetch.element_bytes; byte += 64) {
        __builtin_prefetch(fetch.rows[j] + byte, 0, 2);
      }
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        const Float weight = V::set(weights[r * 4]);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) sums[r][i] = V::fma(weight, value[i], sums[r][i]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        V::store(its.out + r * its.stride + i * V::kLanes, sums[r][i]);
      }
    }
  }
};

// Calls f(RowPanel) for the kind of a panel.
template <class V, class F>
CONTEXTILE_INLINE void with_panel(const PagedPanel& panel, const F& f) {
  if (panel.rows > V::kLanes) return f(RowPanel<V, 1, 2>());
  if constexpr (V::kLanes == 16) {
    if (panel.keys == 4) return f(RowPanel<V, 4, 1>());
  }
  if constexpr (V::kLanes >= 8) {
    if (panel.keys == 2) return f(RowPanel<V, 2, 1>());
  }
  f(RowPanel<V, 1, 1>());
}

}  // namespace contextile
