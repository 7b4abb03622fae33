// Files of a model's folder.
#pragma once

#include <sys/stat.h>

#include <string>

#include "base/check.h"

namespace contextile {

// Returns `path`, whose file may be missing. Throws IoError if it is there and no regular file:
// reading a pipe waits for a writer, and a device may have no end.
[[nodiscard]] inline const std::string& model_file(const std::string& path) {
  struct stat found = {};
  if (::stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    const char* kind = S_ISDIR(found.st_mode)    ? "a folder"
                       : S_ISFIFO(found.st_mode) ? "a pipe"
                       : S_ISSOCK(found.st_mode) ? "a socket"
                                                 : "a device";
    fail_io("{}: expected a regular file, found {}", path, kind);
  }
  return path;
}

}  // namespace contextile
