// The frame of a plan file: header, manifest, offset table, one section for each rank. All numbers
// little-endian; sections begin at multiples of 8 bytes, gaps are zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plan/file/manifest.h"

namespace contextile {

struct PlanFileHeader {
  static constexpr std::size_t kBytes = 64;
  static constexpr std::size_t kDigestOffset = 24;

  std::uint64_t file_bytes = 0;
  std::uint64_t digest = 0;
  std::uint64_t manifest_bytes = 0;
  std::uint64_t num_devices = 0;
  std::uint64_t table_offset = 0;
};
struct SectionEntry {  // one row of the offset table
  static constexpr std::size_t kBytes = 16;

  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

[[nodiscard]] constexpr std::uint64_t aligned_to_8(std::uint64_t bytes) {
  return (bytes + 7) / 8 * 8;
}

// The whole file with the digest zero.
[[nodiscard]] std::vector<std::uint8_t> write_frame(
    std::span<const std::uint8_t> manifest,
    std::span<const std::vector<std::uint8_t>> device_sections);
void put_digest(std::span<std::uint8_t> file, std::uint64_t digest);

// A file taken apart: views into its bytes. Throws InvalidPlan naming `file` unless magic, version,
// sizes and offsets are exactly those write_frame gives and the digest is that of the content.
struct PlanFileViews {
  PlanFileHeader header;
  std::span<const std::uint8_t> manifest;
  std::vector<std::span<const std::uint8_t>> devices;  // by rank
};
[[nodiscard]] PlanFileViews read_frame(std::span<const std::uint8_t> bytes, std::string_view file);

// XXH3-64 of a file's bytes with the digest taken as zero. `file` holds at least the header.
[[nodiscard]] std::uint64_t digest_of_file(std::span<const std::uint8_t> file);

// The file of a plan with the digest zero.
[[nodiscard]] std::vector<std::uint8_t> encode_plan(const Plan& plan);

}  // namespace contextile
