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

// Looks at the first bytes of a source (all of it, or at least kFirstBytes), which messages call
// `name`, and throws when nothing that is expected begins like that; returns how many bytes at most
// are worth reading.
using FirstLook =
    std::function<std::uint64_t(std::span<const std::uint8_t> first, std::string_view name)>;
inline constexpr std::size_t kFirstBytes = 4096;

// More than any text we read; a source without an end stops here.
inline constexpr std::uint64_t kMaxTextBytes = std::uint64_t{1} << 30;

// A FirstLook for text: throws InvalidArgument on a byte that no text has. `what` the text is ("a
// cluster as JSON") is for the message.
[[nodiscard]] FirstLook expect_text(std::string what);

// Regular files are mapped, so that only the pages a parser looks at are read; anything else (a
// pipe, a device, standard input) is read piece by piece, to its end or the limit. NOTE: cutting
// the file short while it is mapped is a bus error, as with every mapping.
class FileBytes {
 public:
  // Throws IoError with the source and the system's reason, or when a source that is no regular
  // file goes on behind the limit; and what `look` throws.
  // `path` kStandardStream is standard input.
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
