#include "cli/command_text.h"

#include "report/table.h"

namespace contextile {

std::string command_text(const std::string& command) {
  constexpr std::size_t kIndentAndBackslash = 6;
  std::string text = "  ";
  for (const char c : wrap(command, kTextColumns - kIndentAndBackslash)) {
    text += c == '\n' ? std::string(" \\\n    ") : std::string(1, c);
  }
  return text;
}

}  // namespace contextile
