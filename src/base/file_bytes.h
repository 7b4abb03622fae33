// A whole file as bytes, for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace contextile {

// Regular files are mapped, so that only the pages a parser looks at are read; anything else (a
// pipe, a process substitution) is read to its end. NOTE: cutting the file short while it is mapped
// is a bus error, as with every mapping.
class FileBytes {
 public:
  // Throws IoError with the path and the system's reason.
  explicit FileBytes(const std::string& path);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return bytes_; }
  [[nodiscard]] std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  void* mapping_ = nullptr;  // null: the bytes are in copy_
  std::vector<std::uint8_t> copy_;
  std::span<const std::uint8_t> bytes_;
};

}  // namespace contextile
