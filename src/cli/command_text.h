// Command lines in text that users copy from.
#pragma once

#include <string>

namespace contextile {

// The command indented by two columns and broken at spaces into lines of at most 80, each but the
// last ending in a backslash, so that a shell takes all of them as one command. Ends without a
// newline.
[[nodiscard]] std::string command_text(const std::string& command);

}  // namespace contextile
