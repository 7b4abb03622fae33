#include "plan/file/slice_frame.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/little_endian.h"
#include "contextile/plan_file.h"
#include "plan/file/frame_header.h"

namespace contextile {
namespace {

constexpr std::string_view kSliceMagic = "CTXSLICE";

// Offsets of the header's fields; up to the number of sections they are those of a plan file.
constexpr std::size_t kSliceHeaderBytesAt = 12;
constexpr std::size_t kSliceBytesAt = 16;
constexpr std::size_t kSliceDigestAt = 24;
constexpr std::size_t kSliceChecksumAt = 32;
constexpr std::size_t kSliceNumSectionsAt = 40;
constexpr std::size_t kRankAt = 48;
constexpr std::size_t kManifestBytesAt = 56;
constexpr std::size_t kDeviceBytesAt = 64;

constexpr std::uint64_t kMostDevices = std::uint64_t{1} << 31;

constexpr FrameFormat kSliceFormat{.magic = kSliceMagic,
                                   .version = kPlanFileVersion,
                                   .header_bytes = SliceHeader::kBytes,
                                   .name = "a slice of a plan",
                                   .noun = "slice"};

// Checks everything that does not need the bytes after the header.
void check_header(std::span<const std::uint8_t> bytes, std::string_view where) {
  check_frame_header(bytes, kSliceFormat, where);
  if (get(bytes, kSliceHeaderBytesAt, 4) != SliceHeader::kBytes) {
    fail_plan("{}: header: expected header bytes {}, found {}", where, SliceHeader::kBytes,
              get(bytes, kSliceHeaderBytesAt, 4));
  }
  if (get(bytes, kSliceBytesAt) != bytes.size()) {
    fail_plan("{}: header: expected a slice of {} bytes, found {}", where,
              get(bytes, kSliceBytesAt), bytes.size());
  }
  check_frame_checksum(checksum_of(bytes), get(bytes, kSliceChecksumAt), kSliceFormat, where);
}

}  // namespace

std::vector<std::uint8_t> write_slice_frame(std::span<const ContentId> contents,
                                            const Section& manifest, const Section& device,
                                            Rank rank) {
  const std::uint64_t manifest_at =
      SliceHeader::kBytes + contents.size() * SliceHeader::kTableBytes;
  const std::uint64_t device_at = manifest_at + aligned_to_8(manifest.stored.size());
  std::vector<std::uint8_t> slice(device_at + aligned_to_8(device.stored.size()));
  std::memcpy(slice.data(), kSliceMagic.data(), kSliceMagic.size());
  put(slice, FrameFormat::kVersionAt, kPlanFileVersion, 4);
  put(slice, kSliceHeaderBytesAt, SliceHeader::kBytes, 4);
  put(slice, kSliceBytesAt, slice.size());
  put(slice, kSliceDigestAt, digest_of(contents));
  put(slice, kSliceNumSectionsAt, contents.size());
  put(slice, kRankAt, static_cast<std::uint64_t>(rank.value));
  put(slice, kManifestBytesAt, manifest.stored.size());
  put(slice, kDeviceBytesAt, device.stored.size());
  std::size_t row = SliceHeader::kBytes;
  for (const ContentId& content : contents) {
    put(slice, row, content.bytes);
    put(slice, row + 8, content.hash);
    row += SliceHeader::kTableBytes;
  }
  std::ranges::copy(manifest.stored, slice.begin() + static_cast<std::ptrdiff_t>(manifest_at));
  std::ranges::copy(device.stored, slice.begin() + static_cast<std::ptrdiff_t>(device_at));
  put_checksum(slice, checksum_of(slice));
  return slice;
}

SliceViews read_slice_frame(std::span<const std::uint8_t> bytes, std::string_view where) {
  check_header(bytes, where);
  const std::uint64_t most =
      std::min((bytes.size() - SliceHeader::kBytes) / SliceHeader::kTableBytes, kMostDevices);
  const std::uint64_t num_sections = get(bytes, kSliceNumSectionsAt);
  const std::uint64_t rank = get(bytes, kRankAt);
  if (num_sections < 2 || num_sections > most || rank + 1 >= num_sections || rank >= most) {
    fail_plan(
        "{}: header: expected 2 to {} sections in {} bytes and a rank among them, found {} "
        "sections and rank {}",
        where, most, bytes.size(), num_sections, rank);
  }
  const std::uint64_t manifest_at = SliceHeader::kBytes + num_sections * SliceHeader::kTableBytes;
  const std::uint64_t manifest_bytes = get(bytes, kManifestBytesAt);
  const std::uint64_t device_bytes = get(bytes, kDeviceBytesAt);
  const std::uint64_t left = bytes.size() - manifest_at;
  if (manifest_bytes > left || device_bytes > left ||
      aligned_to_8(manifest_bytes) + aligned_to_8(device_bytes) != left) {
    fail_plan("{}: header: expected two sections in {} bytes, found {} and {} bytes", where, left,
              manifest_bytes, device_bytes);
  }
  std::vector<ContentId> contents;
  contents.reserve(num_sections);
  for (std::size_t row = SliceHeader::kBytes; row < manifest_at; row += SliceHeader::kTableBytes) {
    contents.push_back({get(bytes, row), get(bytes, row + 8)});
  }
  SliceViews views;
  views.digest = digest_of(contents);
  if (views.digest != get(bytes, kSliceDigestAt)) {
    fail_plan("{}: header: expected digest {} (of the contents), found {}", where,
              digest_text(views.digest), digest_text(get(bytes, kSliceDigestAt)));
  }
  views.num_devices = num_sections - 1;
  views.rank = Rank{static_cast<std::int32_t>(rank)};
  views.manifest = {contents[0], bytes.subspan(manifest_at, manifest_bytes)};
  views.device = {contents[rank + 1],
                  bytes.subspan(manifest_at + aligned_to_8(manifest_bytes), device_bytes)};
  return views;
}

}  // namespace contextile
