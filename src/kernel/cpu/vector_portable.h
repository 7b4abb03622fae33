// Vectors of floats in terms of the compiler, for any processor.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/half.h"
#include "kernel/cpu/inline.h"

namespace contextile {

// Vectors of 4 floats and of their halves as fp64.
struct VectorsOf4 {
  static constexpr int kLanes = 4;
  using Float = float __attribute__((vector_size(16)));
  using Int = std::int32_t __attribute__((vector_size(16)));
  using HalfFloats = float __attribute__((vector_size(8)));
  using Doubles = double __attribute__((vector_size(16)));
};

// A vector class with the interface of VectorAvx512, on the compiler's vectors of any length. exp2
// is 0 below 2^-126.
template <class Vectors>
struct VectorOf {
  using Float = typename Vectors::Float;
  using Int = typename Vectors::Int;
  using Mask = Int;

  // Half a vector as fp64.
  using HalfFloats = typename Vectors::HalfFloats;
  using Doubles = typename Vectors::Doubles;
  CONTEXTILE_INLINE static Doubles widen(HalfFloats x) {
    return __builtin_convertvector(x, Doubles);
  }
  CONTEXTILE_INLINE static HalfFloats narrow(Doubles x) {
    return __builtin_convertvector(x, HalfFloats);
  }

  static constexpr int kLanes = Vectors::kLanes;
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

  CONTEXTILE_INLINE static Float load(const float* from) {
    Float a;
    std::memcpy(&a, from, sizeof(a));
    return a;
  }
  CONTEXTILE_INLINE static void store(float* to, Float a) { std::memcpy(to, &a, sizeof(a)); }
  CONTEXTILE_INLINE static Float set(float a) { return a - Float{}; }
  CONTEXTILE_INLINE static Float zero() { return Float{}; }
  CONTEXTILE_INLINE static Float add(Float a, Float b) { return a + b; }
  CONTEXTILE_INLINE static Float sub(Float a, Float b) { return a - b; }
  CONTEXTILE_INLINE static Float mul(Float a, Float b) { return a * b; }
  CONTEXTILE_INLINE static Float div(Float a, Float b) { return a / b; }
  CONTEXTILE_INLINE static Float max(Float a, Float b) { return select(a > b, a, b); }
  CONTEXTILE_INLINE static Float min(Float a, Float b) { return select(a < b, a, b); }
  CONTEXTILE_INLINE static Float abs(Float a) { return select(a < zero(), -a, a); }
  CONTEXTILE_INLINE static Float fma(Float a, Float b, Float c) { return a * b + c; }
  CONTEXTILE_INLINE static Float fms(Float a, Float b, Float c) { return a * b - c; }

  CONTEXTILE_INLINE static Factor load_factors(const Element* from) { return load(from); }
  CONTEXTILE_INLINE static Factor set_factor(Element a) { return set(a); }
  CONTEXTILE_INLINE static Float multiply_add(Factor a, Factor b, Float c) { return fma(a, b, c); }

  CONTEXTILE_INLINE static Float times_sign(Float a, float sign) { return mul(a, set(sign)); }
  CONTEXTILE_INLINE static void store_elements(float* to, Float a) { store(to, a); }

  CONTEXTILE_INLINE static Int load_int(const std::int32_t* from) {
    Int a;
    std::memcpy(&a, from, sizeof(a));
    return a;
  }
  CONTEXTILE_INLINE static Mask none() { return Mask{}; }
  CONTEXTILE_INLINE static Mask either(Mask a, Mask b) { return a | b; }
  CONTEXTILE_INLINE static bool any(Mask a) {
    std::int32_t bits = 0;
    for (int i = 0; i < kLanes; ++i) bits |= a[i];
    return bits != 0;
  }
  CONTEXTILE_INLINE static Mask between(Int x, std::int32_t lo, std::int32_t hi) {
    return (x >= lo) & (x <= hi);
  }
  CONTEXTILE_INLINE static Mask less(Float a, Float b) { return a < b; }
  CONTEXTILE_INLINE static Float select(Mask mask, Float a, Float b) { return mask ? a : b; }

  CONTEXTILE_INLINE static Float load_bf16(const std::uint16_t* from) {
    Float a;
    for (int i = 0; i < kLanes; ++i) a[i] = bf16_to_float(from[i]);
    return a;
  }
  CONTEXTILE_INLINE static Float load_f16(const std::uint16_t* from) {
    Float a;
    for (int i = 0; i < kLanes; ++i) a[i] = f16_to_float(from[i]);
    return a;
  }

  CONTEXTILE_INLINE static Float load_int8(const std::int8_t* from) {
    Float a;
    for (int i = 0; i < kLanes; ++i) a[i] = from[i];
    return a;
  }
  CONTEXTILE_INLINE static Float load_fp8(const std::uint8_t* from) {
    Float a;
    for (int i = 0; i < kLanes; ++i) a[i] = fp8_to_float(from[i]);
    return a;
  }

  CONTEXTILE_INLINE static void store_bf16(std::uint16_t* to, Float a) {
    for (int i = 0; i < kLanes; ++i) to[i] = float_to_bf16(a[i]);
  }
  CONTEXTILE_INLINE static void store_f16(std::uint16_t* to, Float a) {
    for (int i = 0; i < kLanes; ++i) to[i] = float_to_f16(a[i]);
  }

  CONTEXTILE_INLINE static Float exp2(Float x) {
    constexpr float kShift = 12582912.0F;  // 1.5 · 2^23: its last bit counts ones
    x = max(x, set(-127.0F));
    const Float shifted = x + kShift;
    const Float fraction = x - (shifted - kShift);
    Float p = set(kExp2Of[4]);
    p = p * fraction + kExp2Of[3];
    p = p * fraction + kExp2Of[2];
    p = p * fraction + kExp2Of[1];
    p = p * fraction + kExp2Of[0];
    p = p * fraction + 1.0F;
    Int bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits - (0x4b400000 - 127)) << 23;  // 2^whole; 0 for -127
    Float power;
    std::memcpy(&power, &bits, sizeof(power));
    return p * power;
  }

  CONTEXTILE_INLINE static float sum(Float x) {
    float total = 0;
    for (int i = 0; i < kLanes; ++i) total += x[i];
    return total;
  }
  CONTEXTILE_INLINE static float most(Float x) {
    float largest = x[0];
    for (int i = 1; i < kLanes; ++i) largest = x[i] > largest ? x[i] : largest;
    return largest;
  }
  CONTEXTILE_INLINE static Float sum_each(Float (&x)[kLanes]) {
    transpose(x);
    Float total = x[0];
    for (int i = 1; i < kLanes; ++i) total = add(total, x[i]);
    return total;
  }

  CONTEXTILE_INLINE static void transpose(Float (&x)[kLanes]) {
    for (int i = 0; i < kLanes; ++i) {
      for (int j = i + 1; j < kLanes; ++j) {
        const float above = x[i][j];
        x[i][j] = x[j][i];
        x[j][i] = above;
      }
    }
  }
};
using VectorPortable = VectorOf<VectorsOf4>;

}  // namespace contextile
