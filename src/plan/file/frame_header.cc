#include "plan/file/frame_header.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/little_endian.h"
#include "base/quote.h"
#include "contextile/plan_file.h"

namespace contextile {

void check_frame_begin(std::span<const std::uint8_t> bytes, const FrameFormat& format,
                       std::string_view where) {
  const std::size_t size = std::min(bytes.size(), format.magic.size());
  if (size == 0 || std::memcmp(bytes.data(), format.magic.data(), size) != 0) {
    const std::string_view found(reinterpret_cast<const char*>(bytes.data()), size);
    fail_plan("{}: not {}: expected it to begin with {}, found {}", where, format.name,
              quote(format.magic), quote(found));
  }
  // The version is checked first, because another version may have another header.
  if (bytes.size() < FrameFormat::kVersionAt + 4) return;  // too short for any version
  const std::uint64_t version = get(bytes, FrameFormat::kVersionAt, 4);
  if (version != format.version) {
    fail_plan("{}: header: expected version {}, found {}: the {} was written by {}", where,
              format.version, version, format.noun,
              version < format.version ? "an older contextile, plan again" : "a newer contextile");
  }
}

void check_frame_header(std::span<const std::uint8_t> bytes, const FrameFormat& format,
                        std::string_view where) {
  check_frame_begin(bytes, format, where);
  if (bytes.size() < format.header_bytes) {
    fail_plan("{}: header: expected {} bytes, found {}: the {} is truncated", where,
              format.header_bytes, bytes.size(), format.noun);
  }
}

void check_frame_checksum(std::uint64_t computed, std::uint64_t stated, const FrameFormat& format,
                          std::string_view where) {
  if (computed == stated) return;
  fail_plan("{}: header: expected checksum {} (of the {}), found {}: the {} is corrupt", where,
            digest_text(computed), format.noun, digest_text(stated), format.noun);
}

}  // namespace contextile
