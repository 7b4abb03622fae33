#include "base/file_bytes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "base/out_of_memory.h"
#include "base/standard_stream.h"
#include "base/steady_file.h"

namespace contextile {
namespace {

[[noreturn]] void fail_reading(std::string_view name, int error) {
  fail_io("{}: cannot read: {}", name, std::generic_category().message(error));
}

FileDescriptor open_source(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer, deaf to interrupts.
  const int value = path == kStandardStream
                        ? ::dup(STDIN_FILENO)
                        : ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (value < 0) fail_reading(path, errno);
  return FileDescriptor(value);
}

// Reads until `result` holds `size` bytes or the source ends; true at the end.
bool read_up_to(int file, std::uint64_t size, std::string_view name,
                std::vector<std::uint8_t>& result) {
  constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;
  while (result.size() < size) {
    const std::size_t before = result.size();
    result.resize(before + std::min(size - before, kPieceBytes));
    ssize_t count = 0;
    do {
      static_cast<void>(poll_until(file, POLLIN, Clock::time_point::max()));
      count = ::read(file, result.data() + before, result.size() - before);
    } while (count < 0 && (errno == EINTR || errno == EAGAIN));
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

// All bytes of a regular file: first its beginning, then, if `look` lets it pass, the rest.
struct Content {
  std::unique_ptr<std::uint8_t[]> bytes;
  std::size_t size = 0;
};

Content read_regular(const SteadyFile& file, const FirstLook& look) {
  std::vector<std::uint8_t> first(std::min<std::uint64_t>(file.size(), kFirstBytes));
  first.resize(file.read_up_to(0, first));
  static_cast<void>(look(first, file.name()));
  if (file.size() > half_of_memory()) {
    fail_io("{}: expected at most {} bytes, half of this machine's memory, found {}", file.name(),
            half_of_memory(), file.size());
  }
  return with_memory_for(
      [&] { return fmt::format("{}, a file of {} bytes", file.name(), file.size()); },
      [&] {
        Content content{std::make_unique_for_overwrite<std::uint8_t[]>(file.size()), 0};
        content.size = file.read_up_to(0, {content.bytes.get(), file.size()});
        return content;
      });
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
  FileDescriptor file = open_source(path);
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) fail_reading(name_, errno);
  if (S_ISDIR(info.st_mode)) fail_reading(name_, EISDIR);
  // Files in /proc claim to be regular and empty: they are read to their end. So is standard input,
  // even from a regular file: it begins where the file's offset is, not at byte 0.
  if (S_ISREG(info.st_mode) && info.st_size > 0 && path != kStandardStream) {
    Content content = read_regular(SteadyFile(std::move(file), info, name_), look);
    content_ = std::move(content.bytes);
    bytes_ = {content_.get(), content.size};
    return;
  }
  stream_ = read_stream(file.get(), name_, look);
  bytes_ = stream_;
}

}  // namespace contextile
