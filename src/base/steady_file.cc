#include "base/steady_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace contextile {
namespace {

[[noreturn]] void fail_reading(std::string_view name, int error) {
  fail_io("{}: cannot read: {}", name, std::generic_category().message(error));
}

// A pipe without a writer would be waited for, hence O_NONBLOCK, which regular files ignore.
FileDescriptor open_regular(const std::string& path) {
  int value = -1;
  do {
    value = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  } while (value < 0 && errno == EINTR);
  if (value < 0) fail_reading(path, errno);
  return FileDescriptor(value);
}

struct stat status_of(const FileDescriptor& file, std::string_view name) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_reading(name, errno);
  return status;
}

bool same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (value_ >= 0) ::close(value_);
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : value_(std::exchange(other.value_, -1)) {}

SteadyFile::SteadyFile(const std::string& path)
    : file_(open_regular(path)), opened_(status_of(file_, path)), name_(path) {
  if (S_ISDIR(opened_.st_mode)) fail_reading(name_, EISDIR);
  if (!S_ISREG(opened_.st_mode)) {
    fail_io("{}: expected a regular file, found a pipe, a socket or a device", name_);
  }
}

SteadyFile::SteadyFile(FileDescriptor file, const struct stat& status, std::string name)
    : file_(std::move(file)), opened_(status), name_(std::move(name)) {}

void SteadyFile::read(std::uint64_t offset, std::span<std::uint8_t> out) const {
  const std::uint64_t found = read_up_to(offset, out);
  if (found != out.size()) {
    fail_io("{}: expected {} bytes from byte {} on, found {}", name_, out.size(), offset, found);
  }
}

std::uint64_t SteadyFile::read_up_to(std::uint64_t offset, std::span<std::uint8_t> out) const {
  std::uint64_t done = 0;
  while (done < out.size()) {
    const auto rest = out.subspan(done);
    const ssize_t found =
        ::pread(file_.get(), rest.data(), rest.size(), static_cast<off_t>(offset + done));
    if (found < 0 && errno == EINTR) continue;
    if (found < 0) fail_reading(name_, errno);
    if (found == 0) break;
    done += static_cast<std::uint64_t>(found);
  }
  check_unchanged();
  return done;
}

void SteadyFile::check_unchanged() const {
  const struct stat now = status_of(file_, name_);
  if (now.st_size != opened_.st_size) {
    fail_io("{}: expected {} bytes, found {}: the file {} while it was read", name_,
            opened_.st_size, now.st_size, now.st_size < opened_.st_size ? "shrank" : "grew");
  }
  if (!same_time(now.st_mtim, opened_.st_mtim)) {
    fail_io("{}: expected {} bytes that stay the same, found them written to while they were read",
            name_, opened_.st_size);
  }
}

}  // namespace contextile
