// Computes exp and log of a few numbers at a time in plain fp64 arithmetic, so that loops of them
// become vectors. The relative error is below 1e-10, and the bits are the same for any vector
// length if the compiler fuses nothing (-ffp-contract=off).
#pragma once

#include <bit>
#include <cstdint>

#include "kernel/cpu/inline.h"

namespace contextile {

// Returns exp(x) for x <= 0 and NaN; 0 below -700. exp(0) is 1.
CONTEXTILE_INLINE double exp_of_negative(double x) {
  constexpr double kLog2OfE = 1.4426950408889634;
  constexpr double kLn2High = 0.693147180369123816490;  // 32 bits
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  constexpr double kShift = 6755399441055744.0;  // 1.5 · 2^52: its last bits count ones
  const double bounded = x < -700 ? -700.0 : x;
  const double shifted = bounded * kLog2OfE + kShift;
  const double whole = shifted - kShift;
  const double r = (bounded - whole * kLn2High) - whole * kLn2Low;  // |r| <= ln 2 / 2
  double p = 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const auto power = (std::bit_cast<std::uint64_t>(shifted) + 1023) << 52;
  return x < -700 ? 0.0 : p * std::bit_cast<double>(power);
}

// Returns log(x) for finite x >= 1, and NaN. log(1) is 0.
CONTEXTILE_INLINE double log_of(double x) {
  constexpr double kLn2 = 0.693147180559945309417;
  constexpr std::uint64_t kRootOfHalf = 0x3fe6a09e00000000;  // about sqrt(1/2)
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t exponent = (bits - kRootOfHalf) >> 52;  // small: x >= 1
  const double m = std::bit_cast<double>(bits - (exponent << 52));
  // Converts 2^52 + exponent, given as bits, back to a number.
  const double power = std::bit_cast<double>(exponent | 0x4330000000000000U) - 4503599627370496.0;
  const double s = (m - 1) / (m + 1);  // |s| <= 0.172
  const double z = s * s;
  double p = 2.0 / 11;
  p = p * z + 2.0 / 9;
  p = p * z + 2.0 / 7;
  p = p * z + 2.0 / 5;
  p = p * z + 2.0 / 3;
  p = p * z + 2.0;
  return power * kLn2 + s * p + (x - x);  // NaN stays NaN
}

}  // namespace contextile
