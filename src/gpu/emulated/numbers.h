// Numbers of 16 bits, converted without the project's own functions, which the tests compare with.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace contextile::ptx {

// Rounds to nearest even. Every NaN becomes 0x7fff, as section 9.7.9.21 (cvt) of the manual says.
[[nodiscard]] inline std::uint16_t bf16_of(float x) {
  if (std::isnan(x)) return 0x7fff;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t half = 0x7fff + (bits >> 16 & 1);  // ties go to the even neighbor
  return static_cast<std::uint16_t>((bits + half) >> 16);
}
// Rounds to nearest even. Not by _Float16, which some compilers lack.
[[nodiscard]] inline std::uint16_t f16_of(float x) {
  if (std::isnan(x)) return 0x7fff;
  const std::uint32_t sign = std::signbit(x) ? 0x8000 : 0;
  const float size = std::fabs(x);
  if (size >= 65520) return static_cast<std::uint16_t>(sign | 0x7c00);  // infinity
  if (size == 0) return static_cast<std::uint16_t>(sign);
  const int exponent = std::max(std::ilogb(size), -14);  // below it, numbers have no leading one
  const auto digits = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return static_cast<std::uint16_t>(sign |
                                    ((static_cast<std::uint32_t>(exponent + 14) << 10) + digits));
}

[[nodiscard]] inline float number_of(std::uint16_t bits, bool is_bf16) {
  if (is_bf16) return std::bit_cast<float>(std::uint32_t{bits} << 16);
  const int exponent = bits >> 10 & 31;
  const int digits = bits & 1023;
  const float size = exponent == 31  ? (digits == 0 ? INFINITY : NAN)
                     : exponent == 0 ? std::ldexp(static_cast<float>(digits), -24)
                                     : std::ldexp(static_cast<float>(1024 + digits), exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

}  // namespace contextile::ptx
