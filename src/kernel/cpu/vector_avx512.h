// Vectors of 16 floats: AVX-512 F, BW, DQ, VL. Include this only from files compiled for it.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernel/cpu/inline.h"

namespace contextile {

// A vector class. Its functions work element by element, as their names say:
//   exp2 has relative error 1.6e-7 down to results of 2^-126, and is 0 for -inf;
//   between(x, lo, hi): lo <= x <= hi;  select(mask, a, b): mask ? a : b;
//   min(a, b), max(a, b): b if either is NaN;
//   transpose turns kLanes rows of kLanes elements into columns;
//   sum, most: of the lanes;  sum_each: of the lanes of each of kLanes vectors, in its lane.
// Products are made of elements of kPair numbers that are neighbours along the depth of a product.
// With kPair = 2 a class has in addition
//   interleave(a, b, low, high): pairs (a0, b0), (a1, b1), … of the numbers of two rows;
//   store_elements: numbers rounded, one after another (half a vector);
//   store_pairs: pairs (a0, b0), (a1, b1), … rounded.
// A class with kHasTiles multiplies matrices by tiles, of 16 pairs along the depth (kTilePairs), in
// threads that hold a TileUse. It has in addition
//   multiply: products of matrices;
//   store_first: the first numbers of some pairs, followed by zeros;
//   short_exp2: exp2 as exact as weights that become bf16 need it.
// times_sign is the product of loaded elements with 1, -1 or 0. Register tiles are kProductRows x
// kMaxPanelVectors for scores and outputs, and kGradientRows x kGradientVectors for gradients. A
// vector of the panel grid is kGridVectors of the class. kForwardKeys and kBackwardKeys are the
// keys of one block (multiples of kProductRows); kForwardPanels and kBackwardPanels are the most
// panels that share a packed block.
struct VectorAvx512 {
  using Float = __m512;
  using Int = __m512i;
  using Mask = __mmask16;

  // Half a vector as fp64.
  using HalfFloats = __m256;
  using Doubles = __m512d;
  CONTEXTILE_INLINE static Doubles widen(HalfFloats x) { return _mm512_cvtps_pd(x); }
  CONTEXTILE_INLINE static HalfFloats narrow(Doubles x) { return _mm512_cvtpd_ps(x); }

  static constexpr int kLanes = 16;
  // The elements of products: one float each.
  using Element = float;
  using Factor = Float;
  static constexpr int kPair = 1;
  static constexpr bool kHasTiles = false;
  static constexpr int kGridVectors = 1;
  struct TileUse {};

  static constexpr int kProductRows = 8;
  static constexpr int kGradientRows = 6;
  static constexpr int kGradientVectors = 4;
  static constexpr int kForwardKeys = 256;
  static constexpr int kBackwardKeys = 384;
  static constexpr int kForwardPanels = 32;
  static constexpr int kBackwardPanels = 16;

  CONTEXTILE_INLINE static Float load(const float* from) { return _mm512_loadu_ps(from); }
  CONTEXTILE_INLINE static void store(float* to, Float a) { _mm512_storeu_ps(to, a); }
  CONTEXTILE_INLINE static Float set(float a) { return _mm512_set1_ps(a); }
  CONTEXTILE_INLINE static Float zero() { return _mm512_setzero_ps(); }
  CONTEXTILE_INLINE static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  CONTEXTILE_INLINE static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  CONTEXTILE_INLINE static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  CONTEXTILE_INLINE static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
  CONTEXTILE_INLINE static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  CONTEXTILE_INLINE static Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
  CONTEXTILE_INLINE static Float abs(Float a) { return _mm512_abs_ps(a); }
  CONTEXTILE_INLINE static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  CONTEXTILE_INLINE static Float fms(Float a, Float b, Float c) { return _mm512_fmsub_ps(a, b, c); }

  CONTEXTILE_INLINE static Factor load_factors(const Element* from) { return load(from); }
  CONTEXTILE_INLINE static Factor set_factor(Element a) { return set(a); }
  CONTEXTILE_INLINE static Float multiply_add(Factor a, Factor b, Float c) { return fma(a, b, c); }

  CONTEXTILE_INLINE static Float times_sign(Float a, float sign) { return mul(a, set(sign)); }
  CONTEXTILE_INLINE static void store_elements(float* to, Float a) { store(to, a); }

  CONTEXTILE_INLINE static Int load_int(const std::int32_t* from) {
    return _mm512_loadu_si512(from);
  }
  CONTEXTILE_INLINE static Mask none() { return 0; }
  CONTEXTILE_INLINE static Mask either(Mask a, Mask b) { return static_cast<Mask>(a | b); }
  CONTEXTILE_INLINE static bool any(Mask a) { return a != 0; }
  CONTEXTILE_INLINE static Mask between(Int x, std::int32_t lo, std::int32_t hi) {
    return static_cast<Mask>(_mm512_cmple_epi32_mask(_mm512_set1_epi32(lo), x) &
                             _mm512_cmple_epi32_mask(x, _mm512_set1_epi32(hi)));
  }
  CONTEXTILE_INLINE static Mask less(Float a, Float b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
  }
  CONTEXTILE_INLINE static Float select(Mask mask, Float a, Float b) {
    return _mm512_mask_blend_ps(mask, b, a);
  }

  CONTEXTILE_INLINE static Float load_bf16(const std::uint16_t* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  CONTEXTILE_INLINE static Float load_f16(const std::uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }

  CONTEXTILE_INLINE static Float load_int8(const std::int8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  }
  // Widens e4m3: as f16 its exponent is 8 too small. The encodings of its would-be largest numbers
  // are NaN.
  CONTEXTILE_INLINE static Float load_fp8(const std::uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m256i wide = _mm256_cvtepu8_epi16(bytes);
    const __m256i rest = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
    const __m256i f16 = _mm256_or_si256(sign, _mm256_slli_epi16(rest, 7));
    const Float value = _mm512_mul_ps(_mm512_cvtph_ps(f16), _mm512_set1_ps(256.0F));
    const __mmask16 is_nan = _mm256_cmpeq_epi16_mask(rest, _mm256_set1_epi16(0x7f));
    return _mm512_mask_blend_ps(is_nan, value, _mm512_set1_ps(__builtin_nanf("")));
  }

  // Rounds to nearest even; a NaN stays a NaN.
  CONTEXTILE_INLINE static void store_bf16(std::uint16_t* to, Float a) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i last = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    const __m512i rounded =
        _mm512_mask_or_epi32(_mm512_srli_epi32(sum, 16), is_nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(rounded));
  }
  CONTEXTILE_INLINE static void store_f16(std::uint16_t* to, Float a) {
    const __m256i bits = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
  }

  CONTEXTILE_INLINE static Float exp2(Float x) {
    const Float fraction = _mm512_reduce_ps(x, 0);  // to the nearest integer
    const Float whole = _mm512_sub_ps(x, fraction);
    Float p = set(kExp2Of[4]);
    p = fma(p, fraction, set(kExp2Of[3]));
    p = fma(p, fraction, set(kExp2Of[2]));
    p = fma(p, fraction, set(kExp2Of[1]));
    p = fma(p, fraction, set(kExp2Of[0]));
    p = fma(p, fraction, set(1.0F));
    return _mm512_scalef_ps(p, whole);
  }

  CONTEXTILE_INLINE static float sum(Float x) { return _mm512_reduce_add_ps(x); }
  CONTEXTILE_INLINE static float most(Float x) { return _mm512_reduce_max_ps(x); }
  CONTEXTILE_INLINE static Float sum_each(Float (&x)[kLanes]) {
#pragma GCC unroll 16
    for (int i = 0; i < 8; ++i) {
      x[i] = add(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]),
                 _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; ++i) {
      x[i] =
          add(unpack_low_pairs(x[2 * i], x[2 * i + 1]), unpack_high_pairs(x[2 * i], x[2 * i + 1]));
    }
    // Now element l of quarter q of x[i] is a part of the sum of vector 4·i + l.
#pragma GCC unroll 16
    for (int i = 0; i < 2; ++i) {
      x[i] = add(_mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x88),
                 _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xdd));
    }
    return add(_mm512_shuffle_f32x4(x[0], x[1], 0x88), _mm512_shuffle_f32x4(x[0], x[1], 0xdd));
  }

  CONTEXTILE_INLINE static void transpose(Float (&x)[kLanes]) {
    Float y[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
      y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
      y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) {
      x[i] = unpack_low_pairs(y[i], y[i + 2]);
      x[i + 1] = unpack_high_pairs(y[i], y[i + 2]);
      x[i + 2] = unpack_low_pairs(y[i + 1], y[i + 3]);
      x[i + 3] = unpack_high_pairs(y[i + 1], y[i + 3]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 8) {
#pragma GCC unroll 16
      for (int j = 0; j < 4; ++j) {
        y[i + j] = _mm512_shuffle_f32x4(x[i + j], x[i + j + 4], 0x88);
        y[i + j + 4] = _mm512_shuffle_f32x4(x[i + j], x[i + j + 4], 0xdd);
      }
    }
#pragma GCC unroll 16
    for (int j = 0; j < 8; ++j) {
      x[j] = _mm512_shuffle_f32x4(y[j], y[j + 8], 0x88);
      x[j + 8] = _mm512_shuffle_f32x4(y[j], y[j + 8], 0xdd);
    }
  }

 private:
  CONTEXTILE_INLINE static Float unpack_low_pairs(Float a, Float b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
  CONTEXTILE_INLINE static Float unpack_high_pairs(Float a, Float b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  }
};

}  // namespace contextile
