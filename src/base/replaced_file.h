// A file that results go to: nobody ever sees half of it.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <string_view>

#include "contextile/base.h"

namespace contextile {

// Results could not be written: the environment's fault, not the input's.
class OutputError : public IoError {
 public:
  using IoError::IoError;
};

// What is written stands in a temporary file beside the target, which takes the target's place on
// commit(); without commit() nothing has happened. A symbolic link stays, its target is replaced;
// the new file has the old one's mode. A pipe or character device is written to, kStandardStream is
// standard output; what else is no regular file (a directory, a socket, a block device) is refused.
// Throws OutputError (where, the system's reason).
class ReplacedFile {
 public:
  explicit ReplacedFile(const std::string& path);
  ~ReplacedFile();
  ReplacedFile(const ReplacedFile&) = delete;
  ReplacedFile& operator=(const ReplacedFile&) = delete;

  void write(std::string_view text);
  void write(std::span<const std::uint8_t> bytes);
  // The same as a stream. It throws OutputError, too: badbit is in its exception mask.
  [[nodiscard]] std::ostream& stream();
  [[nodiscard]] std::int64_t num_bytes() const;  // written so far
  // Everything is on its way to the disk and the target is replaced.
  void commit();

 private:
  class Buffer;
  std::unique_ptr<Buffer> buffer_;
  std::ostream stream_;
};

// Removes the temporary files of this process that stand unfinished. For a signal handler: calls
// nothing that is not async-signal-safe.
void remove_unfinished_files() noexcept;

}  // namespace contextile
