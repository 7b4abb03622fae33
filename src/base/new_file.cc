#include "base/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <utility>

namespace contextile {

NewFile make_new_file(std::string_view beginning, std::string_view ending, mode_t mode) {
  constexpr int kMaxTries = 16;  // of 64 random bits: a second one is already a wonder
  std::random_device random;
  NewFile made;
  for (int i = 0; i < kMaxTries; ++i) {
    std::string path = fmt::format("{}{:08x}{:08x}{}", beginning, random(), random(), ending);
    do {
      made.descriptor =
          ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    } while (made.descriptor < 0 && errno == EINTR);
    if (made.descriptor >= 0) {
      made.path = std::move(path);
      made.error = 0;
      break;
    }
    made.error = errno;
    if (made.error != EEXIST) break;
  }
  return made;
}

int write_and_close(const NewFile& file, std::string_view text) {
  int error = 0;
  while (!text.empty() && error == 0) {
    const ssize_t written = ::write(file.descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  // Reports errors that a write-back file system only reports at the end.
  if (::close(file.descriptor) != 0 && errno != EINTR && error == 0) error = errno;
  return error;
}

}  // namespace contextile
