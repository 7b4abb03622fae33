// The operations that attention to pages needs of vectors of 16 floats. Include this only from
// files compiled for AVX-512 F, BW, DQ, VL.
#pragma once

#include "contextile/extend/paged_attention.h"
#include "kernel/cpu/vector_avx512.h"

namespace contextile {

// A lane class: a vector class with
//   load_lanes<n>: n numbers, repeated until the vector is full;
//   sum_lanes<n>: n vectors to one. Lane n·r + i has the sum of lanes n·r … n·r + n - 1 of vector i;
//   most_lanes<n>: in every lane the largest of the n lanes n·r … n·r + n - 1;
//   widen: 64 elements of a cache as floats, in the order that `element` tells. Orders other than
//     the cache's need fewer instructions, and dot products do not care;
//   element: the index of the element that `widen` puts at a position;
//   factor: what the floats of `widen` must be multiplied by.
struct LanesAvx512 : VectorAvx512 {
  template <int n>
  CONTEXTILE_INLINE static Float load_lanes(const float* from) {
    if constexpr (n == 4) {
      return _mm512_broadcast_f32x4(_mm_loadu_ps(from));
    } else if constexpr (n == 2) {
      return _mm512_castpd_ps(_mm512_set1_pd(*reinterpret_cast<const Pair*>(from)));
    } else {
      return set(*from);
    }
  }

  template <int n>
  CONTEXTILE_INLINE static Float sum_lanes(const Float* x) {
    if constexpr (n == 4) {
      const Float low = add(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
      const Float high = add(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
      return add(_mm512_shuffle_ps(low, high, 0x44), _mm512_shuffle_ps(low, high, 0xee));
    } else if constexpr (n == 2) {
      const Float straight = _mm512_mask_blend_ps(0xaaaa, x[0], x[1]);
      const Float crossed = _mm512_mask_blend_ps(0xaaaa, x[1], x[0]);
      return add(straight, _mm512_permute_ps(crossed, 0xb1));
    } else {
      return x[0];
    }
  }

  template <int n>
  CONTEXTILE_INLINE static Float most_lanes(Float x) {
    if constexpr (n >= 2) x = max(x, _mm512_permute_ps(x, 0xb1));
    if constexpr (n >= 4) x = max(x, _mm512_permute_ps(x, 0x4e));
    return x;
  }

  template <KvDtype dtype>
  CONTEXTILE_INLINE static void widen(const std::byte* from, Float (&to)[4]) {
    widen_half<dtype>(from, 0, &to[0]);
    widen_half<dtype>(from, 1, &to[2]);
  }

  // Writes the first or the last two vectors of `widen`.
  template <KvDtype dtype>
  CONTEXTILE_INLINE static void widen_half(const std::byte* from, int half, Float* to) {
    const auto* at = reinterpret_cast<const std::uint8_t*>(from);
    if constexpr (dtype == KvDtype::kF32) {
      to[0] = load(reinterpret_cast<const float*>(at) + 32 * half);
      to[1] = load(reinterpret_cast<const float*>(at) + 32 * half + 16);
    } else if constexpr (dtype == KvDtype::kBf16) {
      const __m512i x = _mm512_loadu_si512(at + 64 * half);
      to[0] = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
      to[1] = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)));
    } else if constexpr (dtype == KvDtype::kInt8) {
      to[0] = load_int8(reinterpret_cast<const std::int8_t*>(at) + 32 * half);
      to[1] = load_int8(reinterpret_cast<const std::int8_t*>(at) + 32 * half + 16);
    } else if constexpr (dtype == KvDtype::kFp8) {
      widen_fp8(_mm512_loadu_si512(at), half, to);
    } else {
      to[0] = load_f16(reinterpret_cast<const std::uint16_t*>(at) + 32 * half);
      to[1] = load_f16(reinterpret_cast<const std::uint16_t*>(at) + 32 * half + 16);
    }
  }

  static constexpr int element(KvDtype dtype, int position) {
    const int vector = position / 16;
    const int lane = position % 16;
    if (dtype == KvDtype::kBf16) return vector / 2 * 32 + 2 * lane + vector % 2;
    if (dtype == KvDtype::kFp8) return 32 * (vector % 2) + 2 * lane + vector / 2;
    return position;
  }

  static constexpr float factor(KvDtype dtype) { return dtype == KvDtype::kFp8 ? 256.0F : 1.0F; }

 private:
  using Pair = double __attribute__((may_alias, aligned(4)));

  // e4m3 becomes f16 with an exponent that is 8 too small, except for NaN, which is looked for. The
  // first half has the even elements, the other the odd ones.
  CONTEXTILE_INLINE static void widen_fp8(__m512i x, int half, Float* to) {
    const __m512i at_top = half == 0 ? _mm512_slli_epi16(x, 8) : x;
    const __m512i f16 = _mm512_and_si512(_mm512_srai_epi16(at_top, 1),
                                         _mm512_set1_epi16(static_cast<short>(0xbf80)));
    to[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(f16));
    to[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(f16, 1));
    const __m512i rest = _mm512_and_si512(x, _mm512_set1_epi8(0x7f));
    const __mmask64 nan = _mm512_cmpeq_epi8_mask(rest, _mm512_set1_epi8(0x7f));
    if (__builtin_expect(nan != 0, 0)) {
      const Float quiet = set(__builtin_nanf(""));
      const Float largest = set(1.875F);  // no other encoding becomes this
      for (int i = 0; i < 2; ++i) {
        to[i] = select(_mm512_cmp_ps_mask(abs(to[i]), largest, _CMP_EQ_OQ), quiet, to[i]);
      }
    }
  }
};

}  // namespace contextile
