// A file that results go to. It is never visible half written.
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

// A file that is written in a temporary file in the target's folder. On commit(), the temporary
// file takes the target's place; without commit() nothing has happened. If the target is a symbolic
// link, the link stays and its target is replaced. The new file has the old one's mode. A pipe or
// character device is written to, and kStandardStream is standard output. Anything else that is no
// regular file (a directory, a socket, a block device) is refused. Throws OutputError (where, the
// system's reason).
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
  // Sends everything on its way to the disk and replaces the target.
  void commit();

 private:
  class Buffer;
  std::unique_ptr<Buffer> buffer_;
  std::ostream stream_;
};

// Removes the unfinished temporary files of this process. For a signal handler: it calls nothing
// that is not async-signal-safe.
void remove_unfinished_files() noexcept;

}  // namespace contextile
