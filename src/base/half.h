// bf16 and f16 as bits, rounded to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace contextile {

[[nodiscard]] constexpr float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

[[nodiscard]] constexpr std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

[[nodiscard]] constexpr float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0) {  // zero and subnormal: fraction · 2^-24, exact in fp32
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  const std::uint32_t wide = exponent == 0x1fU ? 0xffU : exponent + 112U;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

// Reads e4m3, which has no infinities. As f16 its exponent is 8 too small, and the codes that would
// be its largest numbers are NaN.
[[nodiscard]] constexpr float fp8_to_float(std::uint8_t bits) {
  if ((bits & 0x7fU) == 0x7fU) return std::bit_cast<float>(0x7fc00000U);
  const auto f16 = static_cast<std::uint16_t>(((bits & 0x80U) << 8) | ((bits & 0x7fU) << 7));
  return f16_to_float(f16) * 256.0F;
}

// Rounds to nearest even. A number that is too large becomes the largest one, 448.
[[nodiscard]] constexpr std::uint8_t float_to_fp8(float value) {
  const auto sign = static_cast<std::uint8_t>((std::bit_cast<std::uint32_t>(value) >> 24) & 0x80U);
  if (value != value) return static_cast<std::uint8_t>(sign | 0x7fU);
  const float magnitude = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0x7fffffffU);
  if (magnitude >= 448.0F) return static_cast<std::uint8_t>(sign | 0x7eU);
  // Adding a power of 2 rounds at the last bit that is kept.
  int exponent = static_cast<int>(std::bit_cast<std::uint32_t>(magnitude) >> 23) - 127;
  if (exponent < -6) exponent = -6;
  const float step = std::bit_cast<float>(static_cast<std::uint32_t>(exponent - 3 + 127) << 23);
  const float shift = step * 8388608.0F;
  const float rounded = (magnitude + shift) - shift;
  const float eighths = rounded / step;  // 0 to 16, whole
  const auto count = static_cast<std::uint32_t>(eighths);
  const auto code = static_cast<std::uint32_t>(exponent + 6) * 8U + count;  // 16 carries over
  return static_cast<std::uint8_t>(sign | (code > 0x7eU ? 0x7eU : code));
}

[[nodiscard]] constexpr std::uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);   // NaN
  if (magnitude >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // >= 65536: inf
  if (magnitude < 0x38800000U) {  // below 2^-14: subnormal; adding 0.5 rounds at bit 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

}  // namespace contextile
