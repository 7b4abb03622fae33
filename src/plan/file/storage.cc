#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/file_bytes.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"

namespace contextile {
namespace {

[[noreturn]] void fail_writing(const std::string& path, int error) {
  fail_io("{}: cannot write: {}", path, std::generic_category().message(error));
}

class OutputFile {
 public:
  // `name` is what messages call the file.
  OutputFile(const std::string& path, int flags, std::string name) : name_(std::move(name)) {
    constexpr mode_t kReadWriteForAll = 0666;  // less what the process masks
    do {
      descriptor_ = ::open(path.c_str(), flags | O_CLOEXEC, kReadWriteForAll);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) fail();
  }
  ~OutputFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write_all(std::span<const std::uint8_t> bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail();
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  // Reports what a write-back file system only says at the end.
  void close() {
    const int status = ::close(std::exchange(descriptor_, -1));
    if (status != 0 && errno != EINTR) fail();
  }

 private:
  [[noreturn]] void fail() const { fail_writing(name_, errno); }

  std::string name_;
  int descriptor_ = -1;
};

// A pipe or device, which must be written to and not replaced.
bool is_special(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

void replace_file(const std::string& path, std::span<const std::uint8_t> bytes) {
  // A name of this thread's own beside the target: rename works inside one file system only.
  const std::size_t thread = std::hash<std::thread::id>{}(std::this_thread::get_id());
  const std::string temporary = fmt::format("{}.{}.{:x}.tmp", path, ::getpid(), thread);
  OutputFile file(temporary, O_WRONLY | O_CREAT | O_TRUNC, path);
  try {
    file.write_all(bytes);
    file.close();
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_writing(path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace

void save_plan(const Plan& plan, const std::string& path) {
  const std::vector<std::uint8_t> bytes = serialize(plan);
  if (!is_special(path)) return replace_file(path, bytes);
  OutputFile file(path, O_WRONLY, path);
  file.write_all(bytes);
  file.close();
}

Plan load_plan(const std::string& path) {
  const FileBytes file(path);
  return deserialize(file.bytes(), path);
}

}  // namespace contextile
