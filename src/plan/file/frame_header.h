// What the headers of plan files, of their slices and of what planners put into stores have alike:
// 8 bytes that name the format, its version in the next 4, a checksum somewhere behind.
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
  std::string_view name;  // as what is no such thing is called: "a plan file"
  std::string_view noun;  // as a broken one is called: "file"
};

// The first bytes: magic, and the version as far as it is there. Throws InvalidPlan naming `where`.
void check_frame_begin(std::span<const std::uint8_t> bytes, const FrameFormat& format,
                       std::string_view where);
// That, and that the whole header is there.
void check_frame_header(std::span<const std::uint8_t> bytes, const FrameFormat& format,
                        std::string_view where);
// What was computed of the bytes against what they say.
void check_frame_checksum(std::uint64_t computed, std::uint64_t stated, const FrameFormat& format,
                          std::string_view where);

}  // namespace contextile
