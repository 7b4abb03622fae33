// The frame of a slice of a plan: header, the contents of all sections by size and hash, and two
// sections, the manifest's and one rank's. All numbers little-endian; sections begin at multiples
// of 8 bytes, gaps are zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plan/file/plan_file.h"

namespace contextile {

struct SliceHeader {
  static constexpr std::size_t kBytes = 72;
  static constexpr std::size_t kTableBytes = 16;  // of a section's row
};

// Writes a slice. `contents` are those of the manifest and of every rank; the two sections are
// stored.
[[nodiscard]] std::vector<std::uint8_t> write_slice_frame(std::span<const ContentId> contents,
                                                          const Section& manifest,
                                                          const Section& device, Rank rank);

// A parsed slice: views into its bytes.
struct SliceViews {
  std::uint64_t digest = 0;
  std::uint64_t num_devices = 0;
  Rank rank;
  SectionView manifest;
  SectionView device;
};
// Throws InvalidPlan naming `where` unless magic, version, sizes and offsets are exactly those that
// write_slice_frame writes and checksum and digest are right.
[[nodiscard]] SliceViews read_slice_frame(std::span<const std::uint8_t> bytes,
                                          std::string_view where);

}  // namespace contextile
