#include <string>

#include "base/file_bytes.h"
#include "contextile/data.h"
#include "data/length_formats.h"

namespace contextile {
namespace {

// Formats with a magic begin with it; the others are text.
FirstLook expect_lengths(const std::string& where) {
  return [where](std::span<const std::uint8_t> first) {
    const std::string_view text = as_text(first);
    if (text.starts_with(kNpyMagic) || text.starts_with(kIdxMagic)) return kMaxTextBytes;
    return expect_text("lengths (one per line, JSON, JSONL, .npy or .idx)", where)(first);
  };
}

}  // namespace

std::vector<std::int64_t> read_lengths(const std::string& path, std::string_view length_field) {
  const std::string where = source_name(path);
  const FileBytes file(path, expect_lengths(where));
  const std::string_view name = path;
  if (name.ends_with(".npy") || file.text().starts_with(kNpyMagic)) {
    return parse_lengths_npy(file.bytes(), where);
  }
  if (name.ends_with(".idx") || file.text().starts_with(kIdxMagic)) {
    return parse_lengths_idx(file.bytes(), where);
  }
  return parse_lengths_text(file.text(), length_field, where);
}

}  // namespace contextile
