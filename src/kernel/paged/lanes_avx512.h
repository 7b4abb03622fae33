// The operations that attention to pages needs of vectors of 16 floats. Include this only from
// files compiled for AVX-512 F, BW, DQ, VL.
#pragma once

#include "contextile/extend/paged_attention.h"
#include "kernel/cpu/vector_avx512.h"

namespace contextile {

// A lane class: a vector class with
//   most_lanes<n>: in every lane the largest of the n lanes n·r … n·r + n - 1;
//   widen: two vectors of elements of a cache as floats, in their order or, if `is_paired`, the
//     even ones and then the odd ones. This needs fewer instructions, and dot products do not care.
//     A NaN of fp8 becomes a number;
//   watch: remembers which of 64 elements of fp8 are NaN, for any_nan;
//   spoil: floats of `widen` with the NaNs of fp8 in place;
//   factor: what the floats of `widen` must be multiplied by.
struct LanesAvx512 : VectorAvx512 {
  template <int n>
  CONTEXTILE_INLINE static Float most_lanes(Float x) {
    if constexpr (n >= 2) x = max(x, _mm512_permute_ps(x, 0xb1));
    if constexpr (n >= 4) x = max(x, _mm512_permute_ps(x, 0x4e));
    return x;
  }

  template <KvDtype dtype>
  CONTEXTILE_INLINE static void widen(const std::byte* from, Float (&to)[2]) {
    const auto* at = reinterpret_cast<const std::uint8_t*>(from);
    if constexpr (dtype == KvDtype::kF32) {
      to[0] = load(reinterpret_cast<const float*>(at));
      to[1] = load(reinterpret_cast<const float*>(at) + 16);
    } else if constexpr (dtype == KvDtype::kBf16) {
      const __m512i x = _mm512_loadu_si512(at);
      to[0] = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
      to[1] = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)));
    } else if constexpr (dtype == KvDtype::kInt8) {
      to[0] = load_int8(reinterpret_cast<const std::int8_t*>(at));
      to[1] = load_int8(reinterpret_cast<const std::int8_t*>(at) + 16);
    } else if constexpr (dtype == KvDtype::kFp8) {
      // e4m3 becomes f16 with an exponent that is 8 too small.
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      const __m256i mask = _mm256_set1_epi16(static_cast<short>(0xbf80));
      const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 1);
      to[0] = _mm512_cvtph_ps(_mm256_and_si256(even, mask));
      to[1] = _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(x, 1), mask));
    } else {
      to[0] = load_f16(reinterpret_cast<const std::uint16_t*>(at));
      to[1] = load_f16(reinterpret_cast<const std::uint16_t*>(at) + 16);
    }
  }

  static constexpr bool is_paired(KvDtype dtype) {
    return dtype == KvDtype::kBf16 || dtype == KvDtype::kFp8;
  }
  static constexpr float factor(KvDtype dtype) { return dtype == KvDtype::kFp8 ? 256.0F : 1.0F; }

  // The bytes that are largest without their signs.
  using Watch = __m512i;
  CONTEXTILE_INLINE static Watch watch_nothing() { return _mm512_setzero_si512(); }
  CONTEXTILE_INLINE static Watch watch(Watch seen, const std::byte* from) {
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    return _mm512_max_epu8(seen, _mm512_or_si512(_mm512_loadu_si512(from), sign));
  }
  CONTEXTILE_INLINE static bool any_nan(Watch seen) {
    return _mm512_cmpeq_epi8_mask(seen, _mm512_set1_epi8(-1)) != 0;
  }
  CONTEXTILE_INLINE static Float spoil(Float x) {
    const __mmask16 is_nan = _mm512_cmp_ps_mask(abs(x), set(1.875F), _CMP_EQ_OQ);
    return select(is_nan, set(__builtin_nanf("")), x);
  }
};

}  // namespace contextile
