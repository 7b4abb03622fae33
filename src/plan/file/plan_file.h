// The frame of a plan file: header, section table, sections. All numbers little-endian; sections
// begin at multiples of 8 bytes, gaps are zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/plan.h"

namespace contextile {

inline constexpr std::uint32_t kPlanFileVersion = 2;

// Offset at which the data after a section begins.
constexpr std::uint64_t aligned_to_8(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

struct PlanFileHeader {
  static constexpr std::size_t kBytes = 48;

  std::uint64_t file_bytes = 0;
  std::uint64_t digest = 0;    // of the contents: digest_of
  std::uint64_t checksum = 0;  // of the file as stored: checksum_of
  std::uint64_t num_sections = 0;
};

// Identifies a section's content, independent of how zstd compresses it.
struct ContentId {
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;  // XXH3-64
};
[[nodiscard]] ContentId identify(std::span<const std::uint8_t> content);

// One section: the manifest or a rank.
struct Section {
  static constexpr std::size_t kTableBytes = 32;  // of its row in the section table

  ContentId content;
  std::vector<std::uint8_t> stored;  // as returned by Compressor (compression.h)
};
struct SectionView {
  ContentId content;
  std::span<const std::uint8_t> stored;
};

// Writes the whole file. Sections are the manifest's, then those of every rank.
[[nodiscard]] std::vector<std::uint8_t> write_frame(std::span<const Section> sections);

// Returns the size of the whole file, as its first bytes state it. Throws InvalidPlan naming `file`
// unless magic and version are right.
[[nodiscard]] std::uint64_t stated_file_bytes(std::span<const std::uint8_t> first,
                                              std::string_view file);

// A parsed file: views into its bytes. Throws InvalidPlan naming `file` unless magic, version,
// sizes and offsets are exactly those that write_frame writes and checksum and digest are right.
struct PlanFileViews {
  PlanFileHeader header;
  SectionView manifest;
  std::vector<SectionView> devices;  // by rank
};
[[nodiscard]] PlanFileViews read_frame(std::span<const std::uint8_t> bytes, std::string_view file);

// A plan's digest: XXH3-64 of the sections' sizes and hashes, which represent everything else in
// canonical form.
[[nodiscard]] std::uint64_t digest_of(std::span<const ContentId> sections);
// XXH3-64 of a file's bytes with the checksum taken as zero. `file` holds at least the header.
[[nodiscard]] std::uint64_t checksum_of(std::span<const std::uint8_t> file);
void put_checksum(std::span<std::uint8_t> file, std::uint64_t checksum);

// Returns the contents of the sections of a plan's file: the manifest, then every rank. O(plan).
[[nodiscard]] std::vector<std::vector<std::uint8_t>> encode_contents(const Plan& plan);

}  // namespace contextile
