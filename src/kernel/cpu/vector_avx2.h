// Vectors of 8 floats: AVX2, FMA, F16C. Include this only from files compiled for them.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernel/cpu/inline.h"

namespace contextile {

// A vector class with the interface of VectorAvx512. exp2 is 0 below 2^-126.
struct VectorAvx2 {
  using Float = __m256;
  using Int = __m256i;
  using Mask = __m256;

  // Half a vector as fp64.
  using HalfFloats = __m128;
  using Doubles = __m256d;
  CONTEXTILE_INLINE static Doubles widen(HalfFloats x) { return _mm256_cvtps_pd(x); }
  CONTEXTILE_INLINE static HalfFloats narrow(Doubles x) { return _mm256_cvtpd_ps(x); }

  static constexpr int kLanes = 8;
  // The elements of products: one float each.
  using Element = float;
  using Factor = Float;
  static constexpr int kPair = 1;
  static constexpr bool kHasTiles = false;
  static constexpr int kGridVectors = 1;
  struct TileUse {};

  static constexpr int kProductRows = 4;
  static constexpr int kGradientRows = 6;
  static constexpr int kGradientVectors = 2;
  static constexpr int kForwardKeys = 256;
  static constexpr int kBackwardKeys = 256;
  static constexpr int kForwardPanels = 64;
  static constexpr int kBackwardPanels = 64;

  CONTEXTILE_INLINE static Float load(const float* from) { return _mm256_loadu_ps(from); }
  CONTEXTILE_INLINE static void store(float* to, Float a) { _mm256_storeu_ps(to, a); }
  CONTEXTILE_INLINE static Float set(float a) { return _mm256_set1_ps(a); }
  CONTEXTILE_INLINE static Float zero() { return _mm256_setzero_ps(); }
  CONTEXTILE_INLINE static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  CONTEXTILE_INLINE static Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  CONTEXTILE_INLINE static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  CONTEXTILE_INLINE static Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
  CONTEXTILE_INLINE static Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
  CONTEXTILE_INLINE static Float min(Float a, Float b) { return _mm256_min_ps(a, b); }
  CONTEXTILE_INLINE static Float abs(Float a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), a); }
  CONTEXTILE_INLINE static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  CONTEXTILE_INLINE static Float fms(Float a, Float b, Float c) { return _mm256_fmsub_ps(a, b, c); }

  CONTEXTILE_INLINE static Factor load_factors(const Element* from) { return load(from); }
  CONTEXTILE_INLINE static Factor set_factor(Element a) { return set(a); }
  CONTEXTILE_INLINE static Float multiply_add(Factor a, Factor b, Float c) { return fma(a, b, c); }

  CONTEXTILE_INLINE static Float times_sign(Float a, float sign) { return mul(a, set(sign)); }
  CONTEXTILE_INLINE static void store_elements(float* to, Float a) { store(to, a); }

  CONTEXTILE_INLINE static Int load_int(const std::int32_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  CONTEXTILE_INLINE static Mask none() { return _mm256_setzero_ps(); }
  CONTEXTILE_INLINE static Mask either(Mask a, Mask b) { return _mm256_or_ps(a, b); }
  CONTEXTILE_INLINE static bool any(Mask a) { return _mm256_movemask_ps(a) != 0; }
  CONTEXTILE_INLINE static Mask between(Int x, std::int32_t lo, std::int32_t hi) {
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), x);
    const __m256i above = _mm256_cmpgt_epi32(x, _mm256_set1_epi32(hi));
    return _mm256_castsi256_ps(
        _mm256_andnot_si256(_mm256_or_si256(below, above), _mm256_set1_epi32(-1)));
  }
  CONTEXTILE_INLINE static Mask less(Float a, Float b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  CONTEXTILE_INLINE static Float select(Mask mask, Float a, Float b) {
    return _mm256_blendv_ps(b, a, mask);
  }

  CONTEXTILE_INLINE static Float load_bf16(const std::uint16_t* from) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  CONTEXTILE_INLINE static Float load_f16(const std::uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }

  CONTEXTILE_INLINE static Float load_int8(const std::int8_t* from) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  }
  CONTEXTILE_INLINE static Float load_fp8(const std::uint8_t* from) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    const __m128i wide = _mm_cvtepu8_epi16(bytes);
    const __m128i rest = _mm_and_si128(wide, _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x80)), 8);
    const __m128i f16 = _mm_or_si128(sign, _mm_slli_epi16(rest, 7));
    const Float value = _mm256_mul_ps(_mm256_cvtph_ps(f16), _mm256_set1_ps(256.0F));
    const __m128i is_nan = _mm_cmpeq_epi16(rest, _mm_set1_epi16(0x7f));
    const __m256 mask = _mm256_castsi256_ps(_mm256_cvtepi16_epi32(is_nan));
    return _mm256_blendv_ps(value, _mm256_set1_ps(__builtin_nanf("")), mask);
  }

  CONTEXTILE_INLINE static void store_bf16(std::uint16_t* to, Float a) {
    const __m256i bits = _mm256_castps_si256(a);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i last = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const __m256i rounded = _mm256_blendv_epi8(
        _mm256_srli_epi32(sum, 16), _mm256_or_si256(high, _mm256_set1_epi32(0x40)), is_nan);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(to),
        _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1)));
  }
  CONTEXTILE_INLINE static void store_f16(std::uint16_t* to, Float a) {
    const __m128i bits = _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bits);
  }

  CONTEXTILE_INLINE static Float exp2(Float x) {
    x = max(x, set(-127.0F));
    const Float whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Float fraction = sub(x, whole);
    Float p = set(kExp2Of[4]);
    p = fma(p, fraction, set(kExp2Of[3]));
    p = fma(p, fraction, set(kExp2Of[2]));
    p = fma(p, fraction, set(kExp2Of[1]));
    p = fma(p, fraction, set(kExp2Of[0]));
    p = fma(p, fraction, set(1.0F));
    const __m256i exponent =
        _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));  // 0 for -127
    return mul(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }

  CONTEXTILE_INLINE static float sum(Float x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
  }
  CONTEXTILE_INLINE static float most(Float x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }
  CONTEXTILE_INLINE static Float sum_each(Float (&x)[kLanes]) {
#pragma GCC unroll 16
    for (int i = 0; i < 4; ++i) {
      x[i] = add(_mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]),
                 _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    }
#pragma GCC unroll 16
    for (int i = 0; i < 2; ++i) {
      x[i] = add(_mm256_shuffle_ps(x[2 * i], x[2 * i + 1], 0x44),
                 _mm256_shuffle_ps(x[2 * i], x[2 * i + 1], 0xee));
    }
    return add(_mm256_permute2f128_ps(x[0], x[1], 0x20), _mm256_permute2f128_ps(x[0], x[1], 0x31));
  }

  CONTEXTILE_INLINE static void transpose(Float (&x)[kLanes]) {
    Float y[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < 8; i += 2) {
      y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
      y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 8; i += 4) {
      x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
      x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
      x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
      x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
    }
#pragma GCC unroll 16
    for (int j = 0; j < 4; ++j) {
      y[j] = _mm256_permute2f128_ps(x[j], x[j + 4], 0x20);
      y[j + 4] = _mm256_permute2f128_ps(x[j], x[j + 4], 0x31);
    }
#pragma GCC unroll 16
    for (int j = 0; j < 8; ++j) x[j] = y[j];
  }
};

}  // namespace contextile
