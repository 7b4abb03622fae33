// Scores and sums of few rows, straight from the elements of a cache. Include this only from the
// file of an instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernel/cpu/inline.h"
#include "kernel/paged/cached_rows.h"
#include "kernel/paged/fetch_ahead.h"
#include "kernel/paged/paged_target.h"
#include "kernel/paged/row_panels.h"

namespace contextile {

// A panel of 4 or 8 rows, with several keys to a vector. Dims are in lanes, and elements are
// widened in registers: keeping them as floats in memory would cost more than so few rows gain.
template <class V, KvDtype dtype, int rows>
struct FewRows {
  using Float = typename V::Float;

  // Keys that are scored together, and vectors of values that are summed together.
  static constexpr int kKeys = V::kLanes / rows;
  static constexpr int kPart = 2 * V::kLanes;  // elements that are widened together
  static constexpr std::ptrdiff_t kBytes = bytes_per_element(dtype);
  static constexpr bool kMayHaveNan = dtype == KvDtype::kFp8;

  // Adds the products of two vectors, or of one, of all keys and rows.
  template <int vectors>
  CONTEXTILE_INLINE static void multiply(const float* q, const Float (&keys)[kKeys][2],
                                         Float (&sums)[V::kLanes]) {
#pragma GCC unroll 2
    for (int i = 0; i < vectors; ++i) {
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const Float row = V::load(q + (i * rows + r) * V::kLanes);
#pragma GCC unroll 4
        for (int j = 0; j < kKeys; ++j) {
          sums[r * kKeys + j] = V::fma(row, keys[j][i], sums[r * kKeys + j]);
        }
      }
    }
  }

  // Adds the products of kPagedGroup dims.
  CONTEXTILE_INLINE static void multiply_group(const float* q, const std::byte* const* keys,
                                               std::ptrdiff_t offset, Float (&sums)[V::kLanes]) {
#pragma GCC unroll 4
    for (int d = 0; d < kPagedGroup; d += kPart) {
      Float some[kKeys][2];
#pragma GCC unroll 4
      for (int j = 0; j < kKeys; ++j) {
        V::template widen<dtype>(keys[j] + offset + d * kBytes, some[j]);
      }
      multiply<2>(q + d * rows, some, sums);
    }
  }

  // Scores `count` keys, rounded up to kKeys, and adds the scores to earlier ones unless it
  // `is_first`. Fetches as many rows if there is an `ahead`. Without floats, `dim` is a multiple of
  // kPagedGroup.
  [[gnu::noinline]] static void score(const float* q, std::int32_t dim,
                                      const std::byte* const* keys, std::ptrdiff_t offset,
                                      int count, FetchAhead* ahead, bool is_first, float* scores) {
    for (int j = 0; j < count; j += kKeys) {
      for (int i = 0; i < kKeys && ahead != nullptr; ++i) ahead->fetch_row();
      Float sums[V::kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) sums[i] = V::zero();
      std::int32_t d = 0;
      for (; d + kPagedGroup <= dim; d += kPagedGroup) {
        multiply_group(q + d * rows, keys + j, offset + d * kBytes, sums);
      }
      if constexpr (dtype == KvDtype::kF32) {
        for (; d < dim; d += V::kLanes) {
          Float some[kKeys][2];
#pragma GCC unroll 4
          for (int i = 0; i < kKeys; ++i) {
            some[i][0] = V::load(reinterpret_cast<const float*>(keys[j + i] + offset) + d);
          }
          multiply<1>(q + d * rows, some, sums);
        }
      }
      float* const to = scores + j * rows;
      const Float sum = V::sum_each(sums);
      V::store(to, is_first ? sum : V::add(V::load(to), sum));
    }
    if (kMayHaveNan && has_nan(dim, keys, offset, count)) {
      spoil_scores(dim, keys, offset, count, scores);
    }
  }

  CONTEXTILE_INLINE static bool has_nan(std::int32_t dim, const std::byte* const* some,
                                        std::ptrdiff_t offset, int count) {
    typename V::Watch seen = V::watch_nothing();
    for (int j = 0; j < count; ++j) {
      for (std::int32_t d = 0; d < dim; d += kPagedGroup) {
        seen = V::watch(seen, some[j] + offset + d);
      }
    }
    return __builtin_expect(V::any_nan(seen), 0);
  }

  // Makes the scores of keys with a NaN NaN.
  [[gnu::noinline, gnu::cold]] static void spoil_scores(std::int32_t dim,
                                                        const std::byte* const* keys,
                                                        std::ptrdiff_t offset, int count,
                                                        float* scores) {
    for (int j = 0; j < count; ++j) {
      if (!has_nan(dim, keys + j, offset, 1)) continue;
      for (int r = 0; r < rows; ++r) {
        scores[j / kKeys * V::kLanes + r * kKeys + j % kKeys] = __builtin_nanf("");
      }
    }
  }

  // Adds `count` values of kKeys vectors to the rows. Fetches one of the rows that are `left` for
  // every `pause` values.
  CONTEXTILE_INLINE static void add_vectors(const RowSums& its, const std::byte* const* values,
                                            std::ptrdiff_t offset, int count, int pause,
                                            FetchAhead* ahead, int& left) {
    Float sums[rows][kKeys];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const Float shrink = V::set(its.shrink[r * kKeys]);
#pragma GCC unroll 4
      for (int i = 0; i < kKeys; ++i) {
        sums[r][i] = V::mul(V::load(its.out + r * its.stride + i * V::kLanes), shrink);
      }
    }
    const auto add_key = [&](const float* weights, const std::byte* from) CONTEXTILE_INLINE_LAMBDA {
      Float value[kKeys / 2][2];
#pragma GCC unroll 2
      for (int i = 0; i < kKeys / 2; ++i) {
        V::template widen<dtype>(from + i * kPart * kBytes, value[i]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const Float weight = V::set(weights[r * kKeys]);
#pragma GCC unroll 4
        for (int i = 0; i < kKeys; ++i) {
          sums[r][i] = V::fma(weight, value[i / 2][i % 2], sums[r][i]);
        }
      }
    };
    const float* weights = its.weights;
    int j = 0;
    for (int fetched = 0; j + kKeys <= count; j += kKeys, weights += V::kLanes) {
#pragma GCC unroll 4
      for (int i = 0; i < kKeys; ++i) add_key(weights + i, values[j + i] + offset);
      for (; left > 0 && fetched < j + kKeys; fetched += pause, --left) ahead->fetch_row();
    }
    for (; j < count; ++j, ++weights) add_key(weights, values[j] + offset);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int i = 0; i < kKeys; ++i) {
        V::store(its.out + r * its.stride + i * V::kLanes, sums[r][i]);
      }
    }
  }

  // Adds `count` values to all rows, kKeys vectors at a time. Fetches as many rows if there is an
  // `ahead`. `dim` is a multiple of kPagedGroup.
  [[gnu::noinline]] static void add(RowSums its, std::int32_t dim, const std::byte* const* values,
                                    std::ptrdiff_t offset, int count, FetchAhead* ahead) {
    if (kMayHaveNan && has_nan(dim, values, offset, count)) {
      spoil_sums(its, dim, values, offset, count);
    }
    constexpr std::int32_t kDims = kKeys * V::kLanes;
    int left = ahead == nullptr ? 0 : count;
    for (std::int32_t d = 0; d < dim; d += kDims, its.out += kDims) {
      add_vectors(its, values, offset + d * kBytes, count, dim / kDims, ahead, left);
    }
    for (; left > 0; --left) ahead->fetch_row();
  }

  // Makes the sums of elements that are NaN of fp8 NaN.
  [[gnu::noinline, gnu::cold]] static void spoil_sums(const RowSums& its, std::int32_t dim,
                                                      const std::byte* const* values,
                                                      std::ptrdiff_t offset, int count) {
    for (int j = 0; j < count; ++j) {
      for (std::int32_t d = 0; d < dim; d += kPart) {
        Float part[2];
        V::template widen<dtype>(values[j] + offset + d * kBytes, part);
        for (int i = 0; i < 2; ++i) {
          const Float nothing = V::mul(V::spoil(part[i]), V::zero());
          for (int r = 0; r < rows; ++r) {
            float* to = its.out + r * its.stride + d + i * V::kLanes;
            V::store(to, V::add(V::load(to), nothing));
          }
        }
      }
    }
  }
};

// Calls f(rows) for a panel with few rows; `rows` is a constant.
template <class V, class F>
CONTEXTILE_INLINE void with_few_rows(const PagedPanel& panel, const F& f) {
  if constexpr (V::kLanes == 16) {
    if (panel.rows == 8) return f(std::integral_constant<int, 8>());
  }
  if constexpr (V::kLanes >= 8) f(std::integral_constant<int, 4>());
}

}  // namespace contextile
