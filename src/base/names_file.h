// Presets and files in one argument.
#pragma once

#include <string_view>

namespace contextile {

// True if a text names a file and not a preset, by its form alone: a misspelled preset is never
// looked up as a file.
[[nodiscard]] inline bool names_file(std::string_view text) {
  return text.ends_with(".json") || text.find('/') != std::string_view::npos;
}

}  // namespace contextile
