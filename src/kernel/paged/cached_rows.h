// Elements of a cache as floats. Include this only from the file of an instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernel/cpu/inline.h"
#include "kernel/paged/paged_target.h"

namespace contextile {

// Returns elements of a cache as floats, kLanes at a time, in their order.
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
    const auto* at = reinterpret_cast<const std::uint8_t*>(from) + element;
    return V::mul(V::load_fp8(at), V::set(1 / V::factor(dtype)));
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
  V::store(to, load_cached<V, dtype>(some, 0));
}

// Widens kPagedGroup elements.
template <class V, KvDtype dtype>
CONTEXTILE_INLINE void widen_group(const std::byte* from, float* to) {
  constexpr int kPart = 2 * V::kLanes;
  bool has_nan = false;
  if constexpr (dtype == KvDtype::kFp8) {
    has_nan = __builtin_expect(V::any_nan(V::watch(V::watch_nothing(), from)), 0);
  }
#pragma GCC unroll 8
  for (int d = 0; d < kPagedGroup; d += kPart) {
    typename V::Float part[2];
    V::template widen<dtype>(from + d * bytes_per_element(dtype), part);
    V::store(to + d, has_nan ? V::spoil(part[0]) : part[0]);
    V::store(to + d + V::kLanes, has_nan ? V::spoil(part[1]) : part[1]);
  }
}

// Widens elements [begin, end) of a row of `dim` elements to floats, with zeros after its dim.
// `begin` is a multiple of kPagedGroup, `end` one of 16. Whole groups are in the order of
// element_at.
template <class V, KvDtype dtype>
CONTEXTILE_INLINE void widen_row(const std::byte* from, std::int32_t dim, std::int32_t begin,
                                 std::int32_t end, float* to) {
  const std::int32_t last = end < dim ? end : dim;
  std::int32_t d = begin;
  for (; d + kPagedGroup <= last; d += kPagedGroup, to += kPagedGroup) {
    widen_group<V, dtype>(from + d * bytes_per_element(dtype), to);
  }
  for (; d + V::kLanes <= last; d += V::kLanes, to += V::kLanes) {
    V::store(to, load_cached<V, dtype>(from, d));
  }
  if (d < last) {
    load_rest<V, dtype>(from, d, last, to);
    d += V::kLanes;
    to += V::kLanes;
  }
  for (; d < end; d += V::kLanes, to += V::kLanes) V::store(to, V::zero());
}

// Returns the element that widen_row puts at a position.
template <class V>
std::int32_t element_at(KvDtype dtype, std::int32_t dim, std::int32_t position) {
  constexpr std::int32_t kPart = 2 * V::kLanes;
  const std::int32_t group = position / kPagedGroup * kPagedGroup;
  if (!V::is_paired(dtype) || group + kPagedGroup > dim) return position;
  const std::int32_t at = position % kPart;
  return position - at + 2 * (at % V::kLanes) + at / V::kLanes;
}

}  // namespace contextile
