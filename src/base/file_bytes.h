// A whole file as bytes, for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace contextile {

// Looks at the first bytes of a source (all of it, or at least kFirstBytes) and returns how many
// bytes at most are worth reading. Throws if nothing that is expected begins like that; `name` is
// the source in messages.
using FirstLook =
    std::function<std::uint64_t(std::span<const std::uint8_t> first, std::string_view name)>;
inline constexpr std::size_t kFirstBytes = 4096;

// More than any text that is read. A source without an end stops here.
inline constexpr std::uint64_t kMaxTextBytes = std::uint64_t{1} << 30;

// A FirstLook for text: throws InvalidArgument on a byte that no text has. `what` names the text in
// the message ("a cluster as JSON").
[[nodiscard]] FirstLook expect_text(std::string what);

// The bytes of a file. Regular files are mapped, so that only the pages that a parser looks at are
// read. Anything else (a pipe, a device, standard input) is read piece by piece, to its end or the
// limit. NOTE: as with every mapping, cutting the file short while it is mapped is a bus error.
class FileBytes {
 public:
  // Throws IoError with the source and the system's reason, also if a source that is no regular
  // file goes on beyond the limit, and what `look` throws. `path` kStandardStream is standard
  // input.
  FileBytes(const std::string& path, const FirstLook& look);
  ~FileBytes();
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  // How messages call the source: the path, or "standard input".
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return bytes_; }
  [[nodiscard]] std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  std::string name_;
  void* mapping_ = nullptr;  // null: the bytes are in copy_
  std::vector<std::uint8_t> copy_;
  std::span<const std::uint8_t> bytes_;
};

}  // namespace contextile
