// A value in a file of its own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace contextile {

// In front of the value; numbers are little-endian.
struct ValueHeader {
  static constexpr std::size_t kBytes = 24;  // magic "CTXVALUE", end of life, size of the value

  std::int64_t end_ms = 0;  // since 1970, by the system's clock
  std::uint64_t value_bytes = 0;
};

[[nodiscard]] std::array<std::uint8_t, ValueHeader::kBytes> encode_value_header(
    const ValueHeader& header);
// Decodes the first bytes of a file of `file_bytes`. Throws IoError naming `file` unless they are a
// header of a file of that size with a value within bounds.
[[nodiscard]] ValueHeader decode_value_header(std::span<const std::uint8_t> first,
                                              std::uint64_t file_bytes, std::string_view file);

}  // namespace contextile
