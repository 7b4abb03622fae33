#include "base/file_bytes.h"
#include "contextile/data.h"
#include "data/length_formats.h"

namespace contextile {

std::vector<std::int64_t> read_lengths(const std::string& path, std::string_view length_field) {
  const FileBytes file(path);
  const std::string_view name = path;
  if (name.ends_with(".npy") || file.text().starts_with(kNpyMagic)) {
    return parse_lengths_npy(file.bytes(), path);
  }
  if (name.ends_with(".idx") || file.text().starts_with(kIdxMagic)) {
    return parse_lengths_idx(file.bytes(), path);
  }
  return parse_lengths_text(file.text(), length_field, path);
}

}  // namespace contextile
