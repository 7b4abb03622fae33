// Numbers of 16 bits, converted without the project's own functions, which the tests compare with.
#pragma once

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
[[nodiscard]] inline std::uint16_t f16_of(float x) {
  if (std::isnan(x)) return 0x7fff;
  return std::bit_cast<std::uint16_t>(static_cast<_Float16>(x));
}

[[nodiscard]] inline float number_of(std::uint16_t bits, bool is_bf16) {
  if (is_bf16) return std::bit_cast<float>(std::uint32_t{bits} << 16);
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}

}  // namespace contextile::ptx
