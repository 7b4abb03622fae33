// A regular file that must stay as it is while it is read.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <span>
#include <string>

namespace contextile {

// A descriptor of a file. It is closed at the end.
class FileDescriptor {
 public:
  explicit FileDescriptor(int value) : value_(value) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

// Reads by copying into memory of the caller's. Nothing is mapped, because touching a page of a
// mapping that the file no longer has ends the process (SIGBUS). A file that is cut short, grows or
// is written to in place is an error here instead. A file whose name is given to another one is
// not: its bytes stay as they were opened.
class SteadyFile {
 public:
  // Opens a file. Throws IoError with the path and the system's reason, also on anything that is no
  // regular file: it never waits for the other end of a pipe.
  explicit SteadyFile(const std::string& path);
  // Takes over a descriptor; `status` is what fstat says of it, `name` stands in messages.
  SteadyFile(FileDescriptor file, const struct stat& status, std::string name);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint64_t size() const { return static_cast<std::uint64_t>(opened_.st_size); }

  // Fills `out` from byte `offset` on, which must leave that many in the file. Throws IoError
  // with the file's size then and now if that has changed, and if its bytes have.
  void read(std::uint64_t offset, std::span<std::uint8_t> out) const;
  // The same, for files that say they are longer than they are, such as those of /sys: returns how
  // many bytes there are before the end of an unchanged file.
  [[nodiscard]] std::uint64_t read_up_to(std::uint64_t offset, std::span<std::uint8_t> out) const;

 private:
  void check_unchanged() const;

  FileDescriptor file_;
  struct stat opened_;
  std::string name_;
};

}  // namespace contextile
