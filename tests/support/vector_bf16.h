// The arithmetic of simd:avx512_bf16 and simd:amx_bf16 on any machine: products of pairs of bf16,
// by vectors of 16 lanes or by tiles, in the compiler's own terms. The kernels made of these
// classes run the templates that the instruction sets run.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/half.h"
#include "kernel/cpu/inline.h"
#include "kernel/cpu/vector_portable.h"

namespace contextile {

struct VectorsOf16 {
  static constexpr int kLanes = 16;
  using Float = float __attribute__((vector_size(64)));
  using Int = std::int32_t __attribute__((vector_size(64)));
  using HalfFloats = float __attribute__((vector_size(32)));
  using Doubles = double __attribute__((vector_size(64)));
};

// The counterpart of VectorAvx512Bf16.
struct VectorBf16Pairs : VectorOf<VectorsOf16> {
  using Element = std::uint32_t;
  using Factor = std::uint32_t __attribute__((vector_size(64)));
  static constexpr int kPair = 2;
  static constexpr int kProductRows = 8;
  static constexpr int kGradientVectors = 4;
  static constexpr int kBackwardKeys = 384;
  static constexpr int kForwardPanels = 32;
  static constexpr int kBackwardPanels = 16;

  static float low(Element pair) { return std::bit_cast<float>(pair << 16); }
  static float high(Element pair) { return std::bit_cast<float>(pair & 0xffff0000U); }
  static Element pair(float a, float b) {
    return float_to_bf16(a) | static_cast<Element>(float_to_bf16(b)) << 16;
  }

  static Factor load_factors(const Element* from) {
    Factor a;
    std::memcpy(&a, from, sizeof(a));
    return a;
  }
  static Factor set_factor(Element a) { return Factor{} + a; }
  static Float multiply_add(Factor a, Factor b, Float c) {
    for (int i = 0; i < kLanes; ++i) c[i] += low(a[i]) * low(b[i]) + high(a[i]) * high(b[i]);
    return c;
  }
  static Float times_sign(Float a, float sign) {
    if (sign > 0) return a;
    if (sign == 0) return zero();
    return std::bit_cast<Float>(std::bit_cast<Factor>(a) ^ 0x80008000U);
  }
  static void interleave(Float a, Float b, Float& low_half, Float& high_half) {
    std::uint16_t x[32];
    std::uint16_t y[32];
    std::uint16_t both[64];
    std::memcpy(x, &a, sizeof(x));
    std::memcpy(y, &b, sizeof(y));
    for (int i = 0; i < 32; ++i) {
      both[2 * i] = x[i];
      both[2 * i + 1] = y[i];
    }
    std::memcpy(&low_half, both, sizeof(low_half));
    std::memcpy(&high_half, both + 32, sizeof(high_half));
  }
  static void store_elements(float* to, Float a) {
    std::uint16_t bits[kLanes];
    for (int i = 0; i < kLanes; ++i) bits[i] = float_to_bf16(a[i]);
    std::memcpy(to, bits, sizeof(bits));
  }
  static void store_pairs(float* to, Float a, Float b) {
    Element pairs[kLanes];
    for (int i = 0; i < kLanes; ++i) pairs[i] = pair(a[i], b[i]);
    std::memcpy(to, pairs, sizeof(pairs));
  }
};

// The counterpart of VectorAmxBf16: a tile is 16 x 16 pairs.
struct VectorBf16Tiles : VectorBf16Pairs {
  static constexpr bool kHasTiles = true;
  static constexpr int kGridVectors = 2;
  static constexpr int kProductRows = 32;
  static constexpr int kForwardPanels = 16;
  static constexpr int kTilePairs = 16;

  struct TileFactor {
    const Element* data = nullptr;
    std::int64_t stride = 0;
    const Element* tail = nullptr;
  };

  template <bool kAdd>
  static void multiply(std::int64_t row_tiles, std::int64_t column_tiles, std::int64_t depth_tiles,
                       const TileFactor& a, const Element* b, std::int64_t ldb, float* c,
                       std::int64_t ldc) {
    for (std::int64_t m = 0; m < row_tiles * 16; ++m) {
      for (std::int64_t n = 0; n < column_tiles * 16; n += kLanes) {
        Float sum = kAdd ? load(c + m * ldc + n) : zero();
        for (std::int64_t k = 0; k < depth_tiles * kTilePairs; ++k) {
          const bool is_tail = a.tail != nullptr && k >= (depth_tiles - 1) * kTilePairs;
          const Element left =
              is_tail ? a.tail[m * kTilePairs + k % kTilePairs] : a.data[m * a.stride + k];
          sum = multiply_add(set_factor(left), load_factors(b + k * ldb + n), sum);
        }
        store(c + m * ldc + n, sum);
      }
    }
  }

  static void store_first(Element* to, const Element* from, int numbers) {
    std::uint16_t bits[32] = {};
    std::memcpy(bits, from, 2 * static_cast<std::size_t>(std::min(numbers, 32)));
    std::memcpy(to, bits, sizeof(bits));
  }

  // 2^x as VectorAmxBf16 makes it, with the same polynomial.
  static Float short_exp2(Float x) {
    constexpr float kOf[4] = {6.930448449e-01F, 2.412802048e-01F, 5.224247419e-02F,
                              1.342668429e-02F};
    for (int i = 0; i < kLanes; ++i) {
      const float from = std::max(x[i], -127.0F);
      const float whole = std::floor(from);
      const float f = from - whole;
      const float p = (((kOf[3] * f + kOf[2]) * f + kOf[1]) * f + kOf[0]) * f + 1.0F;
      x[i] = p * std::bit_cast<float>((static_cast<std::int32_t>(whole) + 127) << 23);
    }
    return x;
  }
};

}  // namespace contextile
