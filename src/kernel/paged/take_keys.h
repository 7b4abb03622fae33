// Attention to one chunk of keys. Include this only from the file of an instruction set.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernel/cpu/inline.h"
#include "kernel/paged/paged_target.h"

namespace contextile {

inline constexpr float kNothing = -std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Returns elements of a cache as floats, kLanes at a time.
template <class V, KvDtype dtype>
CONTEXTILE_INLINE typename V::Float load_cached(const std::byte* from, std::int64_t element) {
  if constexpr (dtype == KvDtype::kF32) {
    return V::load(reinterpret_cast<const float*>(from) + element);
  } else if constexpr (dtype == KvDtype::kBf16) {
    return V::load_bf16(reinterpret_cast<const std::uint16_t*>(from) + element);
  } else if constexpr (dtype == KvDtype::kF16) {
    return V::load_f16(reinterpret_cast<const std::uint16_t*>(from) + element);
  } else if constexpr (dtype == KvDtype::kInt8) {
    return V::load_int8(reinterpret_cast<const std::int8_t*>(from) + element);
  } else {
    return V::load_fp8(reinterpret_cast<const std::uint8_t*>(from) + element);
  }
}

// Widens the elements that remain of a row whose dim is no multiple of the lanes.
template <class V, KvDtype dtype>
CONTEXTILE_INLINE void load_rest(const std::byte* from, std::int64_t begin, std::int64_t end,
                                 float* to) {
  constexpr auto kBytes = static_cast<std::size_t>(bytes_per_element(dtype));
  alignas(64) std::byte some[V::kLanes * 4] = {};
  std::memcpy(some, from + static_cast<std::size_t>(begin) * kBytes,
              static_cast<std::size_t>(end - begin) * kBytes);
  V::store(to + begin, load_cached<V, dtype>(some, 0));
}

// Widens a row of the cache to floats, with zeros after its dim.
template <class V, KvDtype dtype>
CONTEXTILE_INLINE void widen_row(const std::byte* from, std::int32_t dim, std::int32_t padded,
                                 float* to) {
  std::int32_t d = 0;
  for (; d + V::kLanes <= dim; d += V::kLanes) V::store(to + d, load_cached<V, dtype>(from, d));
  if (d < dim) {
    load_rest<V, dtype>(from, d, dim, to);
    d += V::kLanes;
  }
  for (; d < padded; d += V::kLanes) V::store(to + d, V::zero());
}

// Number of query rows in one tile of products: a tile has as many products as a vector has lanes.
template <class V>
inline constexpr int kPagedRows = V::kLanes / kPagedKeys;

// Computes the scores of kPagedRows rows and kPagedKeys keys. load(j, d) returns a vector of key j;
// fetch(d) prefetches data for later.
template <class V, class Load, class Fetch>
CONTEXTILE_INLINE void multiply_tile(const float* q, std::int32_t padded_dim, const Load& load,
                                     const Fetch& fetch, float* scores) {
  constexpr int kRows = kPagedRows<V>;
  typename V::Float sums[V::kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < V::kLanes; ++i) sums[i] = V::zero();
  for (std::int32_t d = 0; d < padded_dim; d += V::kLanes) {
    typename V::Float k[kPagedKeys];
#pragma GCC unroll 4
    for (int j = 0; j < kPagedKeys; ++j) k[j] = load(j, d);
    fetch(d);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const typename V::Float row = V::load(q + static_cast<std::ptrdiff_t>(r) * padded_dim + d);
#pragma GCC unroll 4
      for (int j = 0; j < kPagedKeys; ++j) {
        sums[r * kPagedKeys + j] = V::fma(row, k[j], sums[r * kPagedKeys + j]);
      }
    }
  }
  alignas(64) float found[V::kLanes];
  V::store(found, V::sum_each(sums));
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    std::memcpy(scores + static_cast<std::ptrdiff_t>(r) * kPagedChunk, found + r * kPagedKeys,
                sizeof(float) * kPagedKeys);
  }
}

// Numbers of rows and of vectors whose values are summed at a time, in registers.
inline constexpr int kPagedSumRows = 4;
template <class V>
inline constexpr int kPagedSumVectors = V::kLanes == 16 ? 4 : 2;
// Largest part of a row, in floats, that is summed at a time.
inline constexpr int kPagedPart = 64;

template <class V, KvDtype dtype>
struct PagedChunk {
  const PagedParams& params;
  const PagedKv& kv;
  const PagedShape& shape;
  const PagedKeys& keys;
  const PagedWorkspace& work;

  static constexpr std::ptrdiff_t kBytes = bytes_per_element(dtype);

  CONTEXTILE_INLINE std::ptrdiff_t row(std::int32_t head, std::int32_t r) const {
    return static_cast<std::ptrdiff_t>(head) * shape.padded_rows + r;
  }

  [[nodiscard]] CONTEXTILE_INLINE static std::ptrdiff_t offset_of(const PagedTensor& tensor,
                                                                  std::int32_t head) {
    return static_cast<std::ptrdiff_t>(head) * tensor.head_stride * kBytes;
  }

  // Returns key j; indices after the last key return the last one again.
  [[nodiscard]] CONTEXTILE_INLINE const std::byte* key(int j) const {
    return keys.k[j < keys.count ? j : keys.count - 1];
  }

  // Multiplies the query rows from `r` on with a tile of keys, which load(j, d) returns.
  template <class Load, class Fetch>
  CONTEXTILE_INLINE void multiply_rows(std::int32_t r, std::int32_t end, int first,
                                       std::int32_t head, const Load& load,
                                       const Fetch& fetch) const {
    const std::int32_t dim = shape.padded_head_dim;
    for (; r < end; r += kPagedRows<V>) {
      multiply_tile<V>(work.q + row(head, r) * dim, dim, load, fetch,
                       work.scores + row(head, r) * kPagedChunk + first);
    }
  }

  // Scores a tile of keys. Meanwhile the keys of the next tile and the values of this one are
  // fetched: hardware foresees neither the next page nor, if the tokens of a page lie side by side,
  // values that are read head by head.
  void score_tile(int first, std::int32_t head) const {
    const std::byte* from[kPagedKeys];
    const std::byte* next[kPagedKeys];
    const std::byte* values[kPagedKeys];
    const std::ptrdiff_t offset = offset_of(kv.k, head);
    const std::ptrdiff_t value_offset = offset_of(kv.v, head);
    const bool is_last = first + kPagedKeys >= keys.count;
    for (int j = 0; j < kPagedKeys; ++j) {
      from[j] = key(first + j) + offset;
      next[j] = (is_last ? keys.next[j] : key(first + kPagedKeys + j)) + offset;
      values[j] = keys.v[first + j < keys.count ? first + j : keys.count - 1] + value_offset;
    }
    const auto fetch = [&](std::int32_t d) CONTEXTILE_INLINE_LAMBDA {
      if (d * kBytes % 64 != 0) return;
#pragma GCC unroll 4
      for (int j = 0; j < kPagedKeys; ++j) {
        __builtin_prefetch(next[j] + d * kBytes, 0, 3);
        __builtin_prefetch(values[j] + d * kBytes, 0, 2);
      }
    };
    const auto fetch_nothing = [](std::int32_t) CONTEXTILE_INLINE_LAMBDA {};
    const std::int32_t rows = shape.padded_rows;
    const std::int32_t dim = shape.padded_head_dim;
    if (kv.k.dim == dim && (dtype == KvDtype::kF32 || rows == kPagedRows<V>)) {
      const auto load = [&](int j, std::int32_t d)
                            CONTEXTILE_INLINE_LAMBDA { return load_cached<V, dtype>(from[j], d); };
      multiply_rows(0, kPagedRows<V>, first, head, load, fetch);
      multiply_rows(kPagedRows<V>, rows, first, head, load, fetch_nothing);
      return;
    }
    float* tile = work.tile;
    for (int j = 0; j < kPagedKeys; ++j) {
      widen_row<V, dtype>(from[j], kv.k.dim, dim, tile + static_cast<std::ptrdiff_t>(j) * dim);
    }
    const auto load = [&](int j, std::int32_t d) CONTEXTILE_INLINE_LAMBDA {
      return V::load(tile + static_cast<std::ptrdiff_t>(j) * dim + d);
    };
    multiply_rows(0, kPagedRows<V>, first, head, load, fetch);
    multiply_rows(kPagedRows<V>, rows, first, head, load, fetch_nothing);
  }

  void score() const {
    for (int first = 0; first < keys.count; first += kPagedKeys) {
      for (std::int32_t head = 0; head < shape.kv_heads; ++head) score_tile(first, head);
    }
  }

  // Applies the scale of the head and the softcap, and sets keys that are not seen or absent to
  // -inf.
  void finish_scores(std::int32_t head, std::int32_t r, float* scores) const {
    constexpr float kLog2E = 1.4426950408889634F;
    if (shape.k_scale != nullptr) {
      const float scale = shape.k_scale[head];
      for (int j = 0; j < keys.count; ++j) scores[j] *= scale;
    }
    if (params.softcap != 0) {
      const float cap = params.softcap * kLog2E;
      for (int j = 0; j < keys.count; ++j) scores[j] = cap * ::tanhf(scores[j] / cap);
    }
    if (keys.seen != nullptr) {
      const std::int32_t query = r / (shape.rows_of_head / keys.num_queries);
      for (int j = 0; j < keys.count; ++j) {
        if (keys.seen[j * keys.num_queries + query] == 0) {
          scores[j] = kNothing;
        }
      }
    }
    for (int j = keys.count; j < kPagedChunk; ++j) scores[j] = kNothing;
  }

  // Returns true if one of the keys' scores is NaN.
  CONTEXTILE_INLINE bool has_nan(const float* scores) const {
    if (keys.count == kPagedChunk && keys.seen == nullptr) {
      typename V::Float zeros = V::zero();
      for (int j = 0; j < kPagedChunk; j += V::kLanes) {
        zeros = V::fma(V::load(scores + j), V::zero(), zeros);
      }
      return V::sum(zeros) != 0;  // true for NaN and for what infinities make of it
    }
    bool found = false;
    for (int j = 0; j < keys.count; ++j) found = found || scores[j] != scores[j];
    return found;
  }

  // Turns scores into weights and rescales earlier sums to the new largest score.
  void weigh(std::int32_t head, std::int32_t r) const {
    float* scores = work.scores + row(head, r) * kPagedChunk;
    finish_scores(head, r, scores);
    typename V::Float most = V::load(scores);
    for (int j = V::kLanes; j < kPagedChunk; j += V::kLanes) {
      most = V::max(most, V::load(scores + j));
    }
    const float before = work.top[row(head, r)];
    const float largest = V::most(most);
    float top = largest > before ? largest : before;
    if (has_nan(scores) || before != before) top = kNan;
    if (top == kNothing) {  // no key is seen, now or before
      for (int j = 0; j < kPagedChunk; ++j) scores[j] = 0;
      return;
    }
    typename V::Float sum = V::zero();
    for (int j = 0; j < kPagedChunk; j += V::kLanes) {
      const typename V::Float weight = V::exp2(V::sub(V::load(scores + j), V::set(top)));
      V::store(scores + j, weight);
      sum = V::add(sum, weight);
    }
    if (before != top) {
      const float shrink = before == kNothing ? 0.0F : ::exp2f(before - top);
      work.sum[row(head, r)] *= shrink;
      float* out = work.out + row(head, r) * shape.padded_value_dim;
      for (std::int32_t d = 0; d < shape.padded_value_dim; d += V::kLanes) {
        V::store(out + d, V::mul(V::load(out + d), V::set(shrink)));
      }
      work.top[row(head, r)] = top;
    }
    work.sum[row(head, r)] += top == top ? V::sum(sum) : kNan;
  }

  // Adds the values to rows [r, r + kPagedSumRows) and kVectors vectors from d on; load(j, i)
  // returns vector i of key j's values.
  template <int kVectors, class Load>
  CONTEXTILE_INLINE void sum_values(std::int32_t head, std::int32_t r, std::int32_t d,
                                    const Load& load) const {
    const std::ptrdiff_t stride = shape.padded_value_dim;
    const int count = keys.count;
    float* out = work.out + row(head, r) * stride + d;
    const float* weights = work.scores + row(head, r) * kPagedChunk;
    typename V::Float sums[kPagedSumRows][kVectors];
#pragma GCC unroll 4
    for (int n = 0; n < kPagedSumRows; ++n) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) sums[n][i] = V::load(out + n * stride + i * V::kLanes);
    }
    for (int j = 0; j < count; ++j) {
      typename V::Float value[kVectors];
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) value[i] = load(j, i);
#pragma GCC unroll 4
      for (int n = 0; n < kPagedSumRows; ++n) {
        const typename V::Float weight = V::set(weights[n * kPagedChunk + j]);
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) sums[n][i] = V::fma(weight, value[i], sums[n][i]);
      }
    }
#pragma GCC unroll 4
    for (int n = 0; n < kPagedSumRows; ++n) {
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) V::store(out + n * stride + i * V::kLanes, sums[n][i]);
    }
  }

  // Widens elements [d, d + size) of all keys' values to floats, with zeros after their dim.
  CONTEXTILE_INLINE void widen_part(std::int32_t head, std::int32_t d, std::int32_t size) const {
    const std::ptrdiff_t offset = offset_of(kv.v, head) + d * kBytes;
    const std::int32_t dim = kv.v.dim - d < size ? kv.v.dim - d : size;
    for (int j = 0; j < keys.count; ++j) {
      widen_row<V, dtype>(keys.v[j] + offset, dim, size,
                          work.tile + static_cast<std::ptrdiff_t>(j) * kPagedPart);
    }
  }

  template <int kVectors>
  CONTEXTILE_INLINE void add_part(std::int32_t head, std::int32_t d, bool is_copied) const {
    if (is_copied) {
      widen_part(head, d, kVectors * V::kLanes);
      const float* tile = work.tile;
      for (std::int32_t r = 0; r < shape.padded_rows; r += kPagedSumRows) {
        sum_values<kVectors>(head, r, d, [&](int j, int i) CONTEXTILE_INLINE_LAMBDA {
          return V::load(tile + static_cast<std::ptrdiff_t>(j) * kPagedPart + i * V::kLanes);
        });
      }
      return;
    }
    const std::ptrdiff_t offset = offset_of(kv.v, head);
    const std::byte* const* from = keys.v;
    for (std::int32_t r = 0; r < shape.padded_rows; r += kPagedSumRows) {
      sum_values<kVectors>(head, r, d, [&](int j, int i) CONTEXTILE_INLINE_LAMBDA {
        return load_cached<V, dtype>(from[j] + offset, d + i * V::kLanes);
      });
    }
  }

  void add() const {
    constexpr std::int32_t kStep = kPagedSumVectors<V> * V::kLanes;
    const bool is_copied = kv.v.dim != shape.padded_value_dim ||
                           (dtype != KvDtype::kF32 && shape.padded_rows > 2 * kPagedSumRows);
    for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
      std::int32_t d = 0;
      for (; d + kStep <= shape.padded_value_dim; d += kStep) {
        add_part<kPagedSumVectors<V>>(head, d, is_copied);
      }
      for (; d < shape.padded_value_dim; d += V::kLanes) add_part<1>(head, d, is_copied);
    }
  }

  // Does the same as `add` if some rows do not see all keys. To each row only the keys that it sees
  // are added, because the others may be NaN.
  void add_seen() const {
    for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
      const std::ptrdiff_t offset = offset_of(kv.v, head);
      for (int j = 0; j < keys.count; ++j) {
        widen_row<V, dtype>(keys.v[j] + offset, kv.v.dim, shape.padded_value_dim, work.tile);
        for (std::int32_t r = 0; r < shape.rows_of_head; ++r) {
          const std::int32_t query = r / (shape.rows_of_head / keys.num_queries);
          if (keys.seen[j * keys.num_queries + query] == 0) continue;
          const typename V::Float weight = V::set(work.scores[row(head, r) * kPagedChunk + j]);
          float* out = work.out + row(head, r) * shape.padded_value_dim;
          for (std::int32_t d = 0; d < shape.padded_value_dim; d += V::kLanes) {
            V::store(out + d, V::fma(weight, V::load(work.tile + d), V::load(out + d)));
          }
        }
      }
    }
  }

  void take() const {
    score();
    for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
      for (std::int32_t r = 0; r < shape.rows_of_head; ++r) weigh(head, r);
    }
    if (keys.seen != nullptr) {
      add_seen();
    } else {
      add();
    }
  }
};

template <class V>
void take_keys(const PagedParams& params, const PagedKv& kv, const PagedShape& shape,
               const PagedKeys& keys, const PagedWorkspace& work) {
  switch (kv.dtype) {
    case KvDtype::kF32:
      return PagedChunk<V, KvDtype::kF32>{params, kv, shape, keys, work}.take();
    case KvDtype::kBf16:
      return PagedChunk<V, KvDtype::kBf16>{params, kv, shape, keys, work}.take();
    case KvDtype::kF16:
      return PagedChunk<V, KvDtype::kF16>{params, kv, shape, keys, work}.take();
    case KvDtype::kFp8:
      return PagedChunk<V, KvDtype::kFp8>{params, kv, shape, keys, work}.take();
    case KvDtype::kInt8:
      return PagedChunk<V, KvDtype::kInt8>{params, kv, shape, keys, work}.take();
  }
}

template <class V>
constexpr PagedTarget make_paged_target(const char* name) {
  static_assert(kPagedSumRows % kPagedRows<V> == 0);
  return {name, kPagedSumRows, &take_keys<V>};
}

}  // namespace contextile
