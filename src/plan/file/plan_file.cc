#include "contextile/plan_file.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/quote.h"
#include "plan/file/plan_file.h"

namespace contextile {
namespace {

constexpr std::string_view kMagic{"CTXPLAN\0", 8};

// Offsets of the header's numbers; kDigestOffset is among them.
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kHeaderBytesAt = 12;
constexpr std::size_t kFileBytesAt = 16;
constexpr std::size_t kManifestBytesAt = 32;
constexpr std::size_t kNumDevicesAt = 40;
constexpr std::size_t kTableOffsetAt = 48;
constexpr std::size_t kReservedAt = 56;

void put(std::span<std::uint8_t> bytes, std::size_t at, std::uint64_t value, std::size_t size = 8) {
  for (std::size_t i = 0; i < size; ++i) {
    bytes[at + i] = static_cast<std::uint8_t>(value >> (8 * i));
  }
}
std::uint64_t get(std::span<const std::uint8_t> bytes, std::size_t at, std::size_t size = 8) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i) value |= std::uint64_t{bytes[at + i]} << (8 * i);
  return value;
}

void expect_equal(std::string_view file, std::string_view what, std::uint64_t expected,
                  std::uint64_t found) {
  if (expected != found) {
    fail_plan("{}: header: expected {} {}, found {}", file, what, expected, found);
  }
}

void check_magic(std::span<const std::uint8_t> bytes, std::string_view file) {
  const std::size_t size = std::min(bytes.size(), kMagic.size());
  if (size == 0 || std::memcmp(bytes.data(), kMagic.data(), size) != 0) {
    const std::string_view found(reinterpret_cast<const char*>(bytes.data()), size);
    fail_plan("{}: not a plan file: expected it to begin with {}, found {}", file, quote(kMagic),
              quote(found));
  }
}

PlanFileHeader read_header(std::span<const std::uint8_t> bytes, std::string_view file) {
  check_magic(bytes, file);
  if (bytes.size() < PlanFileHeader::kBytes) {
    fail_plan("{}: header: expected {} bytes, found {}: the file is truncated", file,
              PlanFileHeader::kBytes, bytes.size());
  }
  expect_equal(file, "version", kPlanFileVersion, get(bytes, kVersionAt, 4));
  expect_equal(file, "header bytes", PlanFileHeader::kBytes, get(bytes, kHeaderBytesAt, 4));
  expect_equal(file, "reserved bytes", 0, get(bytes, kReservedAt));
  PlanFileHeader header;
  header.file_bytes = get(bytes, kFileBytesAt);
  header.digest = get(bytes, PlanFileHeader::kDigestOffset);
  header.manifest_bytes = get(bytes, kManifestBytesAt);
  header.num_devices = get(bytes, kNumDevicesAt);
  header.table_offset = get(bytes, kTableOffsetAt);
  if (header.file_bytes != bytes.size()) {
    fail_plan("{}: header: expected a file of {} bytes, found {}{}", file, header.file_bytes,
              bytes.size(), bytes.size() < header.file_bytes ? ": the file is truncated" : "");
  }
  return header;
}

}  // namespace

std::vector<std::uint8_t> write_frame(std::span<const std::uint8_t> manifest,
                                      std::span<const std::vector<std::uint8_t>> device_sections) {
  const std::uint64_t table_offset = PlanFileHeader::kBytes + aligned_to_8(manifest.size());
  std::uint64_t file_bytes = table_offset + device_sections.size() * SectionEntry::kBytes;
  for (const auto& section : device_sections) file_bytes += aligned_to_8(section.size());

  std::vector<std::uint8_t> file(file_bytes);
  std::memcpy(file.data(), kMagic.data(), kMagic.size());
  put(file, kVersionAt, kPlanFileVersion, 4);
  put(file, kHeaderBytesAt, PlanFileHeader::kBytes, 4);
  put(file, kFileBytesAt, file_bytes);
  put(file, kManifestBytesAt, manifest.size());
  put(file, kNumDevicesAt, device_sections.size());
  put(file, kTableOffsetAt, table_offset);
  std::copy(manifest.begin(), manifest.end(), file.begin() + PlanFileHeader::kBytes);

  std::uint64_t entry = table_offset;
  std::uint64_t offset = table_offset + device_sections.size() * SectionEntry::kBytes;
  for (const auto& section : device_sections) {
    put(file, entry, offset);
    put(file, entry + 8, section.size());
    std::copy(section.begin(), section.end(), file.begin() + static_cast<std::ptrdiff_t>(offset));
    entry += SectionEntry::kBytes;
    offset += aligned_to_8(section.size());
  }
  return file;
}

void put_digest(std::span<std::uint8_t> file, std::uint64_t digest) {
  put(file, PlanFileHeader::kDigestOffset, digest);
}

PlanFileViews read_frame(std::span<const std::uint8_t> bytes, std::string_view file) {
  PlanFileViews views;
  views.header = read_header(bytes, file);
  const PlanFileHeader& header = views.header;
  const std::uint64_t body = bytes.size() - PlanFileHeader::kBytes;
  if (header.manifest_bytes > body) {
    fail_plan("{}: header: expected a manifest of at most {} bytes, found {}", file, body,
              header.manifest_bytes);
  }
  const std::uint64_t table_offset = PlanFileHeader::kBytes + aligned_to_8(header.manifest_bytes);
  expect_equal(file, "offset table at", table_offset, header.table_offset);
  const std::uint64_t room = bytes.size() < table_offset ? 0 : bytes.size() - table_offset;
  if (header.num_devices > room / SectionEntry::kBytes) {
    fail_plan("{}: header: expected at most {} devices in {} bytes, found {}", file,
              room / SectionEntry::kBytes, room, header.num_devices);
  }
  const std::uint64_t digest = digest_of_file(bytes);
  if (digest != header.digest) {
    fail_plan("{}: header: expected digest {} (of the content), found {}: the file is corrupt",
              file, digest_text(digest), digest_text(header.digest));
  }

  views.manifest = bytes.subspan(PlanFileHeader::kBytes, header.manifest_bytes);
  std::uint64_t offset = table_offset + header.num_devices * SectionEntry::kBytes;
  for (std::uint64_t rank = 0; rank < header.num_devices; ++rank) {
    const std::uint64_t entry = table_offset + rank * SectionEntry::kBytes;
    const SectionEntry section{get(bytes, entry), get(bytes, entry + 8)};
    if (section.offset != offset || section.size > bytes.size() - offset) {
      fail_plan(
          "{}: offset table: expected rank {} at {} with at most {} bytes, found {} bytes at {}",
          file, rank, offset, bytes.size() - offset, section.size, section.offset);
    }
    views.devices.push_back(bytes.subspan(section.offset, section.size));
    offset = std::min<std::uint64_t>(offset + aligned_to_8(section.size), bytes.size());
  }
  if (offset != bytes.size()) {
    fail_plan("{}: expected the end at {}, found {} more bytes", file, offset,
              bytes.size() - offset);
  }
  return views;
}

}  // namespace contextile
