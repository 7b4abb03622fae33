// Keys and values of the TOML and YAML that tests write, which have sections and scalars only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace contextile {

using FlatText = std::vector<std::pair<std::string, std::string>>;

inline std::string trimmed_of_quotes(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \""), text.size());
  const std::size_t end = text.find_last_not_of(" \"");
  return end == std::string_view::npos ? "" : std::string(text.substr(begin, end - begin + 1));
}

// Reads "[section]" and "key = value" (between '=': TOML), or "section:" and indented "key: value"
// (between ':': YAML).
inline FlatText flat_text(std::string_view text, char between) {
  FlatText flat;
  std::string section;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, text.find('#') < end ? text.find('#') : end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.find_first_not_of(' ') == std::string_view::npos) continue;
    if (line.starts_with('[')) {
      section = std::string(line.substr(1, line.find(']') - 1)) + ".";
      continue;
    }
    const std::size_t middle = line.find(between);
    const std::string key = trimmed_of_quotes(line.substr(0, middle));
    const std::string value = trimmed_of_quotes(line.substr(middle + 1));
    if (between == ':' && !line.starts_with(' ')) section = value.empty() ? key + "." : "";
    if (between == ':' && value.empty()) continue;
    flat.emplace_back(section + key, value);
  }
  return flat;
}

}  // namespace contextile
