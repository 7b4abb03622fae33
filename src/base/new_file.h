// Files that did not exist before, under random names.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace contextile {

inline constexpr mode_t kReadWriteForAll = 0666;  // without the bits that the process masks
inline constexpr mode_t kReadWriteForOwner = 0600;

struct NewFile {
  int descriptor = -1;  // open for writing; -1: none was made
  std::string path;     // empty if none was made
  int error = 0;        // errno, if none was made
};

// Makes the file BEGINNING + 16 random hexadecimal digits + ENDING. It never opens what already
// lies under the name, not even a link to nowhere. In a folder that others may write to, the file
// is therefore this process's own.
[[nodiscard]] NewFile make_new_file(std::string_view beginning, std::string_view ending,
                                    mode_t mode);

// Writes all of the text and closes the file. Returns 0, or errno of what failed.
[[nodiscard]] int write_and_close(const NewFile& file, std::string_view text);

}  // namespace contextile
