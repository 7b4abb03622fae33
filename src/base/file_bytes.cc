#include "base/file_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/out_of_memory.h"
#include "base/standard_stream.h"

namespace contextile {
namespace {

[[noreturn]] void fail_reading(std::string_view name, int error) {
  fail_io("{}: cannot read: {}", name, std::generic_category().message(error));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(const std::string& path)
      : value_(path == kStandardStream ? ::dup(STDIN_FILENO)
                                       : ::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (value_ < 0) fail_reading(path, errno);
  }
  ~FileDescriptor() { ::close(value_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  [[nodiscard]] int get() const { return value_; }

 private:
  int value_;
};

// Reads until `result` holds `size` bytes or the source ends; true at the end.
bool read_up_to(int file, std::uint64_t size, std::string_view name,
                std::vector<std::uint8_t>& result) {
  constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;
  while (result.size() < size) {
    const std::size_t before = result.size();
    result.resize(before + std::min(size - before, kPieceBytes));
    ssize_t count = 0;
    do {
      count = ::read(file, result.data() + before, result.size() - before);
    } while (count < 0 && errno == EINTR);
    if (count < 0) fail_reading(name, errno);
    result.resize(before + static_cast<std::size_t>(count));
    if (count == 0) return true;
  }
  return false;
}

std::uint64_t half_of_memory() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) / 2;
}

std::vector<std::uint8_t> read_stream(int file, std::string_view name, const FirstLook& look) {
  std::vector<std::uint8_t> result;
  const bool ended = read_up_to(file, kFirstBytes, name, result);
  const std::uint64_t limit = std::min(look(result, name), half_of_memory());
  // One byte more than the limit tells a source that ends there from one that goes on.
  if (!ended) {
    with_memory_for([&] { return fmt::format("{}, {} bytes so far", name, result.size()); },
                    [&] { return read_up_to(file, limit + 1, name, result); });
  }
  if (result.size() > limit) fail_io("{}: expected at most {} bytes, found more", name, limit);
  return result;
}

}  // namespace

FirstLook expect_text(std::string what) {
  return [what = std::move(what)](std::span<const std::uint8_t> first,
                                  std::string_view name) -> std::uint64_t {
    const auto is_binary = [](std::uint8_t byte) {
      return byte == 0x7f || (byte < 0x20 && (byte < '\t' || byte > '\r'));
    };
    const auto head = first.first(std::min(first.size(), kFirstBytes));
    const auto found = std::ranges::find_if(head, is_binary);
    if (found != head.end()) {
      fail_argument("{}: expected {}, found the byte 0x{:02x} at {}: no text", name, what, *found,
                    found - head.begin());
    }
    return kMaxTextBytes;
  };
}

FileBytes::FileBytes(const std::string& path, const FirstLook& look)
    : name_(path == kStandardStream ? "standard input" : path) {
  const FileDescriptor file(path);
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) fail_reading(name_, errno);
  if (S_ISDIR(info.st_mode)) fail_reading(name_, EISDIR);
  // Files in /proc claim to be regular and empty: they are read, too. So is standard input, even
  // from a regular file: it begins where the file's offset is, a mapping would begin at byte 0.
  if (S_ISREG(info.st_mode) && info.st_size > 0 && path != kStandardStream) {
    const auto size = static_cast<std::size_t>(info.st_size);
    void* const mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (mapping != MAP_FAILED) {
      mapping_ = mapping;
      bytes_ = {static_cast<const std::uint8_t*>(mapping), size};
      try {
        static_cast<void>(look(bytes_, name_));
      } catch (...) {
        ::munmap(mapping_, size);
        throw;
      }
      return;
    }
  }
  copy_ = read_stream(file.get(), name_, look);
  bytes_ = copy_;
}

FileBytes::~FileBytes() {
  if (mapping_ != nullptr) ::munmap(mapping_, bytes_.size());
}

}  // namespace contextile
