

#include "plan/file/plan_file.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/little_endian.h"
#include "contextile/plan_file.h"
#include "plan/file/frame_header.h"

namespace contextile {
namespace {

constexpr std::string_view kMagic{"CTXPLAN\0", 8};

// Offsets of the header's fields; the checksum is at 32.
constexpr std::size_t kHeaderBytesAt = 12;
constexpr std::size_t kFileBytesAt = 16;
constexpr std::size_t kDigestAt = 24;
constexpr std::size_t kChecksumAt = 32;
constexpr std::size_t kNumSectionsAt = 40;

constexpr FrameFormat kFormat{.magic = kMagic,
                              .version = kPlanFileVersion,
                              .header_bytes = PlanFileHeader::kBytes,
                              .name = "a plan file",
                              .noun = "file"};

// Throws InvalidPlan, with the files to give instead, on what plan --schedule writes next to them.
void refuse_schedule(std::span<const std::uint8_t> bytes, std::string_view file) {
  constexpr std::string_view kBegin = "{\n \"format\": \"contextile schedule\"";
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kBegin)) return;
  fail_plan("{0}: expected a plan file, found a schedule; its plans are {1}.0, {1}.1, ...", file,
            file == "standard input" ? "FILE" : file);
}

PlanFileHeader read_header(std::span<const std::uint8_t> bytes, std::string_view file) {
  refuse_schedule(bytes, file);
  check_frame_header(bytes, kFormat, file);
  const std::uint64_t header_bytes = get(bytes, kHeaderBytesAt, 4);
  if (header_bytes != PlanFileHeader::kBytes) {
    fail_plan("{}: header: expected header bytes {}, found {}", file, PlanFileHeader::kBytes,
              header_bytes);
  }
  PlanFileHeader header;
  header.file_bytes = get(bytes, kFileBytesAt);
  header.digest = get(bytes, kDigestAt);
  header.checksum = get(bytes, kChecksumAt);
  header.num_sections = get(bytes, kNumSectionsAt);
  if (header.file_bytes != bytes.size()) {
    fail_plan("{}: header: expected a file of {} bytes, found {}{}", file, header.file_bytes,
              bytes.size(), bytes.size() < header.file_bytes ? ": the file is truncated" : "");
  }
  check_frame_checksum(checksum_of(bytes), header.checksum, kFormat, file);
  const std::uint64_t most = (bytes.size() - PlanFileHeader::kBytes) / Section::kTableBytes;
  if (header.num_sections < 1 || header.num_sections > most) {
    fail_plan("{}: header: expected 1 to {} sections in {} bytes, found {}", file, most,
              bytes.size(), header.num_sections);
  }
  return header;
}

std::string section_name(std::uint64_t section) {
  return section == 0 ? "the manifest" : fmt::format("rank {}", section - 1);
}

std::vector<SectionView> read_table(std::span<const std::uint8_t> bytes, std::uint64_t num_sections,
                                    std::string_view file) {
  std::vector<SectionView> sections;
  sections.reserve(num_sections);
  std::uint64_t offset = PlanFileHeader::kBytes + num_sections * Section::kTableBytes;
  for (std::uint64_t i = 0; i < num_sections; ++i) {
    const std::size_t row = PlanFileHeader::kBytes + i * Section::kTableBytes;
    const std::uint64_t found_at = get(bytes, row);
    const std::uint64_t size = get(bytes, row + 8);
    if (found_at != offset || size > bytes.size() - offset) {
      fail_plan("{}: section table: expected {} at {} with at most {} bytes, found {} bytes at {}",
                file, section_name(i), offset, bytes.size() - offset, size, found_at);
    }
    sections.push_back({{get(bytes, row + 16), get(bytes, row + 24)}, bytes.subspan(offset, size)});
    offset = std::min<std::uint64_t>(offset + aligned_to_8(size), bytes.size());
  }
  if (offset != bytes.size()) {
    fail_plan("{}: expected the end at {}, found {} more bytes", file, offset,
              bytes.size() - offset);
  }
  return sections;
}

}  // namespace

std::uint64_t stated_file_bytes(std::span<const std::uint8_t> first, std::string_view file) {
  refuse_schedule(first, file);
  check_frame_begin(first, kFormat, file);
  return first.size() < PlanFileHeader::kBytes ? PlanFileHeader::kBytes : get(first, kFileBytesAt);
}

std::vector<std::uint8_t> write_frame(std::span<const Section> sections) {
  std::uint64_t offset = PlanFileHeader::kBytes + sections.size() * Section::kTableBytes;
  std::uint64_t file_bytes = offset;
  for (const Section& section : sections) file_bytes += aligned_to_8(section.stored.size());

  std::vector<std::uint8_t> file(file_bytes);
  std::vector<ContentId> contents;
  std::size_t row = PlanFileHeader::kBytes;
  for (const Section& section : sections) {
    put(file, row, offset);
    put(file, row + 8, section.stored.size());
    put(file, row + 16, section.content.bytes);
    put(file, row + 24, section.content.hash);
    std::copy(section.stored.begin(), section.stored.end(),
              file.begin() + static_cast<std::ptrdiff_t>(offset));
    contents.push_back(section.content);
    row += Section::kTableBytes;
    offset += aligned_to_8(section.stored.size());
  }
  std::memcpy(file.data(), kMagic.data(), kMagic.size());
  put(file, FrameFormat::kVersionAt, kPlanFileVersion, 4);
  put(file, kHeaderBytesAt, PlanFileHeader::kBytes, 4);
  put(file, kFileBytesAt, file_bytes);
  put(file, kDigestAt, digest_of(contents));
  put(file, kNumSectionsAt, sections.size());
  put_checksum(file, checksum_of(file));
  return file;
}

PlanFileViews read_frame(std::span<const std::uint8_t> bytes, std::string_view file) {
  PlanFileViews views;
  views.header = read_header(bytes, file);
  std::vector<SectionView> sections = read_table(bytes, views.header.num_sections, file);
  std::vector<ContentId> contents;
  contents.reserve(sections.size());
  for (const SectionView& section : sections) contents.push_back(section.content);
  const std::uint64_t digest = digest_of(contents);
  if (digest != views.header.digest) {
    fail_plan("{}: header: expected digest {} (of the content), found {}", file,
              digest_text(digest), digest_text(views.header.digest));
  }
  views.manifest = sections.front();
  views.devices.assign(sections.begin() + 1, sections.end());
  return views;
}

}  // namespace contextile
