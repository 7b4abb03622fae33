// The common part of the headers of plan files, of their slices and of the values that planners put
// into stores: 8 bytes that name the format, its version in the next 4, a checksum after them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace contextile {

struct FrameFormat {
  static constexpr std::size_t kVersionAt = 8;  // little-endian, 4 bytes

  std::string_view magic;  // 8 bytes
  std::uint64_t version = 0;
  std::size_t header_bytes = 0;
  std::string_view name;  // for bytes of another format: "a plan file"
  std::string_view noun;  // for a broken one: "file"
};

// Checks the first bytes: magic, and the version if there are enough bytes. Throws InvalidPlan
// naming `where`.
void check_frame_begin(std::span<const std::uint8_t> bytes, const FrameFormat& format,
                       std::string_view where);
// Checks the same, and that the whole header is there.
void check_frame_header(std::span<const std::uint8_t> bytes, const FrameFormat& format,
                        std::string_view where);
// Compares the checksum computed from the bytes with the one that the header states.
void check_frame_checksum(std::uint64_t computed, std::uint64_t stated, const FrameFormat& format,
                          std::string_view where);

}  // namespace contextile
