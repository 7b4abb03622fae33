#include "base/replaced_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <streambuf>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/new_file.h"
#include "base/standard_stream.h"

namespace contextile {
namespace {

[[noreturn]] void fail_writing(const std::string& path, int error) {
  throw OutputError(
      fmt::format("{}: cannot write: {}", path, std::generic_category().message(error)));
}

// Names of unfinished files, where a signal handler finds them. A file that has no place in the
// table is written all the same.
struct Unfinished {
  std::atomic<bool> taken = false;
  std::atomic<bool> set = false;
  std::array<char, PATH_MAX> path;
};
constexpr std::size_t kMaxUnfinished = 16;
std::array<Unfinished, kMaxUnfinished> unfinished;  // NOTE: global because signals are

Unfinished* remember(const std::string& path) {
  for (Unfinished& entry : unfinished) {
    if (path.size() >= entry.path.size() || entry.taken.exchange(true)) continue;
    path.copy(entry.path.data(), path.size());
    entry.path[path.size()] = '\0';
    entry.set = true;
    return &entry;
  }
  return nullptr;
}

void forget(Unfinished* entry) {
  if (entry == nullptr) return;
  entry->set = false;
  entry->taken = false;
}

// The path at the end of symbolic links, whether it exists or not. Throws OutputError if they lead
// in a circle.
std::string target_of(const std::string& path) {
  constexpr int kMaxLinks = 40;
  std::filesystem::path target = path;
  std::error_code none;
  for (int i = 0; std::filesystem::is_symlink(target, none); ++i) {
    if (i == kMaxLinks) {
      fail_writing(path, ELOOP);
    }
    const std::filesystem::path link = std::filesystem::read_symlink(target, none);
    if (none) break;
    target = target.parent_path() / link;  // an absolute link replaces the left side
  }
  return target.string();
}

constexpr mode_t kPermissions = 07777;

}  // namespace

class ReplacedFile::Buffer : public std::streambuf {
 public:
  explicit Buffer(const std::string& path) : name_(path), pending_(kPendingBytes) {
    setp(pending_.data(), pending_.data() + pending_.size());
  }
  ~Buffer() override {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
    forget(entry_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  // Not part of the constructor: the destructor cleans up when it fails halfway.
  void open_target() {
    const std::string path = name_;
    if (path == kStandardStream) {
      name_ = "standard output";
      descriptor_ = ::dup(STDOUT_FILENO);
      if (descriptor_ < 0) fail_writing(name_, errno);
      return;
    }
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) return replace(path, std::nullopt);
    if (S_ISREG(status.st_mode)) {
      // Replacing needs no right to write to the file itself; checking for it is only polite.
      if (::access(path.c_str(), W_OK) != 0) fail_writing(path, errno);
      return replace(path, status.st_mode & kPermissions);
    }
    if (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode)) return open_stream(path);
    if (S_ISDIR(status.st_mode)) fail_writing(path, EISDIR);
    throw OutputError(fmt::format(
        "{}: expected a regular file, a pipe or a character device, found another kind", path));
  }

  void commit() {
    flush();
    // Reports errors that a write-back file system only reports at the end.
    if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) fail_writing(name_, errno);
    if (temporary_.empty()) return;
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_writing(name_, errno);
    temporary_.clear();
  }

  [[nodiscard]] std::int64_t num_bytes() const { return flushed_bytes_ + (pptr() - pbase()); }

 protected:
  int_type overflow(int_type c) override {
    flush();
    if (!traits_type::eq_int_type(c, traits_type::eof())) sputc(traits_type::to_char_type(c));
    return traits_type::not_eof(c);
  }
  int sync() override {
    flush();
    return 0;
  }

 private:
  static constexpr std::size_t kPendingBytes = std::size_t{1} << 16;

  void open_stream(const std::string& path) {
    do {
      descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) fail_writing(name_, errno);
  }

  // Writes under another name in the target's folder, because rename works inside one file system
  // only. Others may be able to write to that folder (/tmp): the name cannot be foreseen, and what
  // already lies under it is not opened. The new file is never more open than the old one.
  void replace(const std::string& path, std::optional<mode_t> mode) {
    target_ = target_of(path);
    NewFile made =
        make_new_file(target_ + ".", ".tmp", mode ? kReadWriteForOwner : kReadWriteForAll);
    if (made.descriptor < 0) fail_writing(name_, made.error);
    descriptor_ = made.descriptor;
    temporary_ = std::move(made.path);
    entry_ = remember(temporary_);
    if (mode && ::fchmod(descriptor_, *mode) != 0) fail_writing(name_, errno);
  }

  void flush() {
    flushed_bytes_ += pptr() - pbase();
    const char* at = pbase();
    while (at < pptr()) {
      const ssize_t written = ::write(descriptor_, at, static_cast<std::size_t>(pptr() - at));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail_writing(name_, errno);
      at += written;
    }
    setp(pending_.data(), pending_.data() + pending_.size());
  }

  std::string name_;    // in messages
  std::string target_;  // what commit() replaces
  std::string temporary_;
  Unfinished* entry_ = nullptr;
  int descriptor_ = -1;
  std::int64_t flushed_bytes_ = 0;
  std::vector<char> pending_;
};

ReplacedFile::ReplacedFile(const std::string& path)
    : buffer_(std::make_unique<Buffer>(path)), stream_(buffer_.get()) {
  stream_.exceptions(std::ios::badbit);
  buffer_->open_target();
}

ReplacedFile::~ReplacedFile() = default;

void ReplacedFile::write(std::string_view text) {
  buffer_->sputn(text.data(), static_cast<std::streamsize>(text.size()));
}

void ReplacedFile::write(std::span<const std::uint8_t> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

std::ostream& ReplacedFile::stream() { return stream_; }

std::int64_t ReplacedFile::num_bytes() const { return buffer_->num_bytes(); }

void ReplacedFile::commit() { buffer_->commit(); }

void remove_unfinished_files() noexcept {
  for (const Unfinished& entry : unfinished) {
    if (entry.set) ::unlink(entry.path.data());
  }
}

}  // namespace contextile
