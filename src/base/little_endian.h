// Unsigned numbers in foreign bytes, little-endian. The bytes must be there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace contextile {

inline void put(std::span<std::uint8_t> bytes, std::size_t at, std::uint64_t value,
                std::size_t size = 8) {
  for (std::size_t i = 0; i < size; ++i) {
    bytes[at + i] = static_cast<std::uint8_t>(value >> (8 * i));
  }
}

[[nodiscard]] inline std::uint64_t get(std::span<const std::uint8_t> bytes, std::size_t at,
                                       std::size_t size = 8) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i) value |= std::uint64_t{bytes[at + i]} << (8 * i);
  return value;
}

}  // namespace contextile
