#include "base/file_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/check.h"

namespace contextile {
namespace {

[[noreturn]] void fail_reading(const std::string& path, int error) {
  fail_io("{}: cannot read: {}", path, std::generic_category().message(error));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(const std::string& path)
      : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (value_ < 0) fail_reading(path, errno);
  }
  ~FileDescriptor() { ::close(value_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

std::vector<std::uint8_t> read_to_end(int file, const std::string& path) {
  constexpr std::size_t kChunkBytes = std::size_t{1} << 16;
  std::vector<std::uint8_t> result;
  std::size_t size = 0;
  while (true) {
    if (result.size() - size < kChunkBytes) result.resize(2 * size + kChunkBytes);
    const ssize_t count = ::read(file, result.data() + size, result.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_reading(path, errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  result.resize(size);
  return result;
}

}  // namespace

FileBytes::FileBytes(const std::string& path) {
  const FileDescriptor file(path);
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) fail_reading(path, errno);
  if (S_ISDIR(info.st_mode)) fail_reading(path, EISDIR);
  // Files in /proc claim to be regular and empty: they are read, too.
  if (S_ISREG(info.st_mode) && info.st_size > 0) {
    const auto size = static_cast<std::size_t>(info.st_size);
    void* const mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (mapping != MAP_FAILED) {
      mapping_ = mapping;
      bytes_ = {static_cast<const std::uint8_t*>(mapping), size};
      return;
    }
  }
  copy_ = read_to_end(file.get(), path);
  bytes_ = copy_;
}

FileBytes::~FileBytes() {
  if (mapping_ != nullptr) ::munmap(mapping_, bytes_.size());
}

}  // namespace contextile
