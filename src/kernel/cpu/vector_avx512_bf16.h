// Vectors of 16 floats whose products are made of pairs of bf16: AVX-512 BF16. Include this only
// from files compiled for it.
#pragma once

#include <cstdint>

#include "kernel/cpu/vector_avx512.h"

namespace contextile {

// A vector class that differs from VectorAvx512 only in its products. They round their factors to
// bf16 (inputs are bf16 already; weights and dS lose bits) and add in fp32, without subnormals.
struct VectorAvx512Bf16 : VectorAvx512 {
  using Element = std::uint32_t;
  using Factor = __m512bh;
  static constexpr int kPair = 2;

  CONTEXTILE_INLINE static Factor load_factors(const Element* from) {
    return reinterpret_cast<Factor>(_mm512_loadu_si512(from));
  }
  CONTEXTILE_INLINE static Factor set_factor(Element a) {
    return reinterpret_cast<Factor>(_mm512_set1_epi32(static_cast<int>(a)));
  }
  CONTEXTILE_INLINE static Float multiply_add(Factor a, Factor b, Float c) {
    return _mm512_dpbf16_ps(c, a, b);
  }
  CONTEXTILE_INLINE static Float times_sign(Float a, float sign) {
    const __m512i bits = _mm512_castps_si512(a);
    if (sign > 0) return a;
    if (sign == 0) return zero();
    return _mm512_castsi512_ps(_mm512_xor_si512(bits, _mm512_set1_epi32(INT32_C(-0x7fff8000))));
  }

  CONTEXTILE_INLINE static void interleave(Float a, Float b, Float& low, Float& high) {
    const __m512i low_order = order_of_pairs();
    const __m512i high_order = _mm512_add_epi16(low_order, _mm512_set1_epi16(16));
    const __m512i x = _mm512_castps_si512(a);
    const __m512i y = _mm512_castps_si512(b);
    low = _mm512_castsi512_ps(_mm512_permutex2var_epi16(x, low_order, y));
    high = _mm512_castsi512_ps(_mm512_permutex2var_epi16(x, high_order, y));
  }
  CONTEXTILE_INLINE static void store_elements(float* to, Float a) {
    const __m256i bits = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bits);
  }
  CONTEXTILE_INLINE static void store_pairs(float* to, Float a, Float b) {
    const __m512i bits = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));  // a low, b high
    const __m512i pairs = _mm512_permutexvar_epi16(order_of_halves(), bits);
    _mm512_storeu_si512(to, pairs);
  }

 private:
  // Returns 0, 32, 1, 33, …: numbers of the first and the second operand alternate.
  CONTEXTILE_INLINE static __m512i order_of_pairs() {
    return _mm512_add_epi32(counting(), _mm512_set1_epi32(32 << 16));
  }
  // Returns 0, 16, 1, 17, …: the halves of one vector alternate.
  CONTEXTILE_INLINE static __m512i order_of_halves() {
    return _mm512_add_epi32(counting(), _mm512_set1_epi32(16 << 16));
  }
  // Returns i in both halves of lane i.
  CONTEXTILE_INLINE static __m512i counting() {
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_or_si512(lanes, _mm512_slli_epi32(lanes, 16));
  }
};

}  // namespace contextile
