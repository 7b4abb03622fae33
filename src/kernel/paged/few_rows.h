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
  using Watch = typename V::Watch;

  // Keys that are scored together, and vectors of values that are summed together.
  static constexpr int kKeys = V::kLanes / rows;
  static constexpr int kPart = 2 * V::kLanes;  // elements that are widened together
  static constexpr std::ptrdiff_t kBytes = bytes_per_element(dtype);
  static constexpr bool kMayHaveNan = dtype == KvDtype::kFp8;
  static constexpr std::int32_t kDims = kKeys * V::kLanes;  // that are summed together
  static constexpr bool kWatchesValues = kMayHaveNan && kDims == kPagedGroup;
  // Fetches lines in their order instead of kKeys rows side by side. Four rows and floats gain up
  // to 10% by it; otherwise eight rows lose as much.
  static constexpr bool kFetchesLines =
      (rows == 4 || dtype == KvDtype::kF32) && kKeys * kPart * kBytes >= FetchAhead::kLine;

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

  // Adds the products of kPagedGroup dims. Meanwhile fetches as much: lines in the order of memory,
  // or the same dims of the rows `later`.
  CONTEXTILE_INLINE static void multiply_group(const float* q, const std::byte* const* keys,
                                               std::ptrdiff_t offset,
                                               const std::byte* const (&later)[kKeys],
                                               std::ptrdiff_t later_offset, FetchAhead& ahead,
                                               Watch& seen, Float (&sums)[V::kLanes]) {
    constexpr std::ptrdiff_t kPartBytes = kPart * kBytes;
#pragma GCC unroll 4
    for (int j = 0; j < kKeys && kMayHaveNan; ++j) seen = V::watch(seen, keys[j] + offset);
#pragma GCC unroll 4
    for (int d = 0; d < kPagedGroup; d += kPart) {
      Float some[kKeys][2];
#pragma GCC unroll 4
      for (int j = 0; j < kKeys; ++j) {
        V::template widen<dtype>(keys[j] + offset + d * kBytes, some[j]);
        if (kFetchesLines || d * kBytes % FetchAhead::kLine != 0) continue;
#pragma GCC unroll 4
        for (int i = 0; i < kPartBytes; i += FetchAhead::kLine) {
          __builtin_prefetch(later[j] + later_offset + d * kBytes + i, 0, 3);
        }
      }
      if constexpr (kFetchesLines) {
        ahead.template fetch_lines<kKeys * kPartBytes / FetchAhead::kLine>();
      }
      multiply<2>(q + d * rows, some, sums);
    }
  }

  // Scores `count` keys of one head, rounded up to kKeys, and adds the scores to earlier ones
  // unless it `is_first`. Without floats, `dim` is a multiple of kPagedGroup.
  CONTEXTILE_INLINE static void score_head(const float* q, std::int32_t dim,
                                           const std::byte* const* keys, std::ptrdiff_t offset,
                                           int count, FetchAhead& ahead, bool is_first,
                                           float* scores) {
    Watch seen = V::watch_nothing();
    for (int j = 0; j < count; j += kKeys) {
      const std::byte* later[kKeys] = {};
#pragma GCC unroll 4
      for (int i = 0; i < kKeys && !kFetchesLines; ++i) later[i] = ahead.take_row(dim * kBytes);
      Float sums[V::kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) sums[i] = V::zero();
      std::int32_t d = 0;
      for (; d + kPagedGroup <= dim; d += kPagedGroup) {
        multiply_group(q + d * rows, keys + j, offset + d * kBytes, later, d * kBytes, ahead, seen,
                       sums);
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
    if (kMayHaveNan && __builtin_expect(V::any_nan(seen), 0)) {
      spoil_scores(dim, keys, offset, count, scores);
    }
  }

  // Scores keys that are floats, without fetching any.
  [[gnu::noinline]] static void score(const float* q, std::int32_t dim,
                                      const std::byte* const* keys, std::ptrdiff_t offset,
                                      int count, bool is_first, float* scores) {
    FetchAhead nothing;
    score_head(q, dim, keys, offset, count, nothing, is_first, scores);
  }

  // Scores `count` keys of each head.
  [[gnu::noinline]] static void score_heads(const HeadsOf<const float>& q, std::int32_t dim,
                                            const std::byte* const* keys, std::ptrdiff_t head_bytes,
                                            int count, FetchAhead& ahead,
                                            const HeadsOf<float>& scores) {
    FetchAhead mine = ahead;
    for (int head = 0; head < q.heads; ++head) {
      score_head(q.at(head), dim, keys, head * head_bytes, count, mine, true, scores.at(head));
    }
    ahead = mine;
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

  // Adds `count` values of kKeys vectors to the rows. Meanwhile fetches as many lines.
  CONTEXTILE_INLINE static void add_vectors(const RowSums& its, const std::byte* const* values,
                                            std::ptrdiff_t offset, int count, FetchAhead& ahead,
                                            Watch& seen) {
    constexpr std::ptrdiff_t kLines = kKeys * V::kLanes * kBytes / FetchAhead::kLine;
    Float sums[rows][kKeys];
    its.template load<V, kKeys>(sums);
    const float* weights = its.weights;
    // One value at a time: of several, the vectors would not fit into the registers.
    for (int j = 0; j < count; ++j) {
      const std::byte* const from = values[j] + offset;
      if constexpr (kWatchesValues) seen = V::watch(seen, from);
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
      weights += j % kKeys == kKeys - 1 ? V::kLanes - kKeys + 1 : 1;
      ahead.template fetch_lines<kLines == 0 ? 1 : kLines>();
    }
    its.template store<V>(sums);
  }

  // Adds `count` values of each head to all rows, kKeys vectors at a time. `dim` is a multiple of
  // kPagedGroup.
  [[gnu::noinline]] static void add_heads(const HeadsOfRows& heads, std::int32_t dim,
                                          const std::byte* const* values, std::ptrdiff_t head_bytes,
                                          int count, FetchAhead& ahead) {
    FetchAhead mine = ahead;
    for (int head = 0; head < heads.heads; ++head) {
      const std::ptrdiff_t offset = head * head_bytes;
      RowSums its = heads.at(head);
      Watch seen = V::watch_nothing();
      for (std::int32_t d = 0; d < dim; d += kDims, its.out += kDims) {
        add_vectors(its, values, offset + d * kBytes, count, mine, seen);
      }
      const bool is_watched = kWatchesValues || !kMayHaveNan;
      if (__builtin_expect(V::any_nan(seen), 0) ||
          (!is_watched && has_nan(dim, values, offset, count))) {
        spoil_sums(heads.at(head), dim, values, offset, count);
      }
    }
    ahead = mine;
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
