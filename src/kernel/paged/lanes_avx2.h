// The operations that attention to pages needs of vectors of 8 floats. Include this only from files
// compiled for AVX2, FMA and F16C.
#pragma once

#include "contextile/extend/paged_attention.h"
#include "kernel/cpu/vector_avx2.h"

namespace contextile {

// A lane class with the interface of LanesAvx512.
struct LanesAvx2 : VectorAvx2 {
  template <int n>
  CONTEXTILE_INLINE static Float load_lanes(const float* from) {
    if constexpr (n == 2) {
      return _mm256_castpd_ps(_mm256_set1_pd(*reinterpret_cast<const Pair*>(from)));
    } else {
      return set(*from);
    }
  }

  template <int n>
  CONTEXTILE_INLINE static Float sum_lanes(const Float* x) {
    if constexpr (n == 2) {
      const Float straight = _mm256_blend_ps(x[0], x[1], 0xaa);
      const Float crossed = _mm256_blend_ps(x[1], x[0], 0xaa);
      return add(straight, _mm256_permute_ps(crossed, 0xb1));
    } else {
      return x[0];
    }
  }

  template <int n>
  CONTEXTILE_INLINE static Float most_lanes(Float x) {
    if constexpr (n >= 2) x = max(x, _mm256_permute_ps(x, 0xb1));
    return x;
  }

  template <KvDtype dtype>
  CONTEXTILE_INLINE static void widen(const std::byte* from, Float (&to)[8]) {
    const auto* at = reinterpret_cast<const std::uint8_t*>(from);
    if constexpr (dtype == KvDtype::kBf16) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        const __m256i x = load_bytes(at + 32 * i);
        to[2 * i] = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
        to[2 * i + 1] = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-65536)));
      }
    } else if constexpr (dtype == KvDtype::kInt8) {
      for (int i = 0; i < 8; ++i)
        to[i] = load_int8(reinterpret_cast<const std::int8_t*>(at) + 8 * i);
    } else if constexpr (dtype == KvDtype::kFp8) {
      widen_fp8(load_bytes(at), to);
      widen_fp8(load_bytes(at + 32), to + 4);
    } else {
      for (int i = 0; i < 8; ++i)
        to[i] = load_f16(reinterpret_cast<const std::uint16_t*>(at) + 8 * i);
    }
  }

  static constexpr int element(KvDtype dtype, int position) {
    const int vector = position / 8;
    const int lane = position % 8;
    if (dtype == KvDtype::kBf16) return vector / 2 * 16 + 2 * lane + vector % 2;
    if (dtype == KvDtype::kFp8) {
      return vector / 4 * 32 + 16 * (vector % 2) + 2 * lane + vector % 4 / 2;
    }
    return position;
  }

  static constexpr float factor(KvDtype dtype) { return dtype == KvDtype::kFp8 ? 256.0F : 1.0F; }

  // A NaN remains a NaN.
  CONTEXTILE_INLINE static Float exp2(Float x) {
    return select(_mm256_cmp_ps(x, x, _CMP_UNORD_Q), x, VectorAvx2::exp2(x));
  }

 private:
  using Pair = double __attribute__((may_alias, aligned(4)));

  CONTEXTILE_INLINE static __m256i load_bytes(const std::uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }

  // e4m3 becomes f16 with an exponent that is 8 too small, except for NaN, which is looked for.
  CONTEXTILE_INLINE static void widen_fp8(__m256i x, Float* to) {
    const __m256i mask = _mm256_set1_epi16(static_cast<short>(0xbf80));
    const __m256i even = _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 1), mask);
    const __m256i odd = _mm256_and_si256(_mm256_srai_epi16(x, 1), mask);
    to[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(even));
    to[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(even, 1));
    to[2] = _mm256_cvtph_ps(_mm256_castsi256_si128(odd));
    to[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(odd, 1));
    const __m256i rest = _mm256_and_si256(x, _mm256_set1_epi8(0x7f));
    const __m256i nan = _mm256_cmpeq_epi8(rest, _mm256_set1_epi8(0x7f));
    if (__builtin_expect(_mm256_movemask_epi8(nan) != 0, 0)) {
      const Float quiet = set(__builtin_nanf(""));
      const Float largest = set(1.875F);  // no other encoding becomes this
      for (int i = 0; i < 4; ++i) {
        to[i] = select(_mm256_cmp_ps(abs(to[i]), largest, _CMP_EQ_OQ), quiet, to[i]);
      }
    }
  }
};

}  // namespace contextile
