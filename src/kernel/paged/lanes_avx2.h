// The operations that attention to pages needs of vectors of 8 floats. Include this only from files
// compiled for AVX2, FMA and F16C.
#pragma once

#include "contextile/extend/paged_attention.h"
#include "kernel/cpu/vector_avx2.h"

namespace contextile {

// A lane class with the interface of LanesAvx512.
struct LanesAvx2 : VectorAvx2 {
  template <int n>
  CONTEXTILE_INLINE static Float most_lanes(Float x) {
    if constexpr (n >= 2) x = max(x, _mm256_permute_ps(x, 0xb1));
    return x;
  }

  template <KvDtype dtype>
  CONTEXTILE_INLINE static void widen(const std::byte* from, Float (&to)[2]) {
    const auto* at = reinterpret_cast<const std::uint8_t*>(from);
    if constexpr (dtype == KvDtype::kF32) {
      to[0] = load(reinterpret_cast<const float*>(at));
      to[1] = load(reinterpret_cast<const float*>(at) + 8);
    } else if constexpr (dtype == KvDtype::kBf16) {
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      to[0] = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
      to[1] = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-65536)));
    } else if constexpr (dtype == KvDtype::kInt8) {
      to[0] = load_int8(reinterpret_cast<const std::int8_t*>(at));
      to[1] = load_int8(reinterpret_cast<const std::int8_t*>(at) + 8);
    } else if constexpr (dtype == KvDtype::kFp8) {
      // e4m3 becomes f16 with an exponent that is 8 too small.
      const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
      const __m128i mask = _mm_set1_epi16(static_cast<short>(0xbf80));
      const __m128i even = _mm_srai_epi16(_mm_slli_epi16(x, 8), 1);
      to[0] = _mm256_cvtph_ps(_mm_and_si128(even, mask));
      to[1] = _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(x, 1), mask));
    } else {
      to[0] = load_f16(reinterpret_cast<const std::uint16_t*>(at));
      to[1] = load_f16(reinterpret_cast<const std::uint16_t*>(at) + 8);
    }
  }

  static constexpr bool is_paired(KvDtype dtype) {
    return dtype == KvDtype::kBf16 || dtype == KvDtype::kFp8;
  }
  static constexpr float factor(KvDtype dtype) { return dtype == KvDtype::kFp8 ? 256.0F : 1.0F; }

  // A NaN remains a NaN.
  CONTEXTILE_INLINE static Float exp2(Float x) {
    return select(_mm256_cmp_ps(x, x, _CMP_UNORD_Q), x, VectorAvx2::exp2(x));
  }

  // The bytes that are largest without their signs.
  using Watch = __m256i;
  CONTEXTILE_INLINE static Watch watch_nothing() { return _mm256_setzero_si256(); }
  CONTEXTILE_INLINE static Watch watch(Watch seen, const std::byte* from) {
    const auto* at = reinterpret_cast<const __m256i*>(from);
    const __m256i sign = _mm256_set1_epi8(static_cast<char>(0x80));
    seen = _mm256_max_epu8(seen, _mm256_or_si256(_mm256_loadu_si256(at), sign));
    return _mm256_max_epu8(seen, _mm256_or_si256(_mm256_loadu_si256(at + 1), sign));
  }
  CONTEXTILE_INLINE static bool any_nan(Watch seen) {
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(seen, _mm256_set1_epi8(-1))) != 0;
  }
  CONTEXTILE_INLINE static Float spoil(Float x) {
    const Mask is_nan = _mm256_cmp_ps(abs(x), set(1.875F), _CMP_EQ_OQ);
    return select(is_nan, set(__builtin_nanf("")), x);
  }
};

}  // namespace contextile
