// Words of a shell command.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace contextile {

struct ShellWord {
  std::string text;      // without quotes; variables as they are written
  std::string variable;  // the first variable in it, such as "${SIZE}"; empty: none
};

// Splits like a shell: blanks and line breaks separate, quotes and backslashes protect, # begins a
// comment. Throws InvalidArgument on quotes without end, command substitutions, and characters that
// join commands. O(bytes).
[[nodiscard]] std::vector<ShellWord> shell_words(std::string_view text);

}  // namespace contextile
