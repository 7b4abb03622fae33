// A whole file as bytes, for reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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

// The bytes of a file, as a copy in memory: whatever becomes of the file, they stay. Regular files
// are read at once. Anything else (a pipe, a device, standard input) is read piece by piece, to its
// end or the limit.
class FileBytes {
 public:
  // Throws IoError with the source and the system's reason, also if a regular file changes while it
  // is read (its size before and after) or is larger than half of this machine's memory, or if
  // another source goes on beyond the limit; and what `look` throws. `path` kStandardStream is
  // standard input.
  FileBytes(const std::string& path, const FirstLook& look);

  // How messages call the source: the path, or "standard input".
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::span<const std::uint8_t> bytes() const { return bytes_; }
  [[nodiscard]] std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  std::string name_;
  // The bytes of a regular file or those of a stream. The former are never filled with zeros first.
  std::unique_ptr<std::uint8_t[]> content_;
  std::vector<std::uint8_t> stream_;
  std::span<const std::uint8_t> bytes_;
};

}  // namespace contextile
