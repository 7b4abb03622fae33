#include <string>

#include "base/file_bytes.h"
#include "batch/input/length_formats.h"
#include "contextile/data.h"

namespace contextile {
namespace {

// Formats with a magic begin with it; the others are text.
std::uint64_t expect_lengths(std::span<const std::uint8_t> first, std::string_view name) {
  const std::string_view text = as_text(first);
  if (text.starts_with(kNpyMagic) || text.starts_with(kIdxMagic)) return kMaxTextBytes;
  return expect_text("lengths (one per line, JSON, JSONL, .npy or .idx)")(first, name);
}

}  // namespace

std::vector<std::int64_t> read_lengths(const std::string& path, std::string_view length_field) {
  const FileBytes file(path, expect_lengths);
  const std::string_view name = file.name();
  if (name.ends_with(".npy") || file.text().starts_with(kNpyMagic)) {
    return parse_lengths_npy(file.bytes(), name);
  }
  if (name.ends_with(".idx") || file.text().starts_with(kIdxMagic)) {
    return parse_lengths_idx(file.bytes(), name);
  }
  return parse_lengths_text(file.text(), length_field, name);
}

}  // namespace contextile
