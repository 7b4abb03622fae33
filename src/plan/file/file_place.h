// The reader's place in a plan file, for error messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "contextile/base.h"

namespace contextile {

// Members that do not apply stay -1 or empty.
struct FilePlace {
  std::string_view file;
  std::string_view section = {};  // "manifest", "device section"
  std::int64_t rank = -1;
  std::int64_t round = -1;
  std::int64_t mask = -1;
  std::string_view direction = {};
  std::string_view list = {};  // "staging slot", "instruction", …
  std::int64_t element = -1;   // its index in the list

  [[nodiscard]] std::string text() const {
    std::string out(file);
    if (!section.empty()) out += fmt::format(": {}", section);
    if (rank >= 0) out += fmt::format(" of rank {}", rank);
    if (round >= 0) out += fmt::format(", round {}", round);
    if (mask >= 0) out += fmt::format(", mask {}", mask);
    if (!direction.empty()) out += fmt::format(", {}", direction);
    if (!list.empty()) out += fmt::format(", {}", list);
    if (element >= 0) out += fmt::format(" {}", element);
    return out;
  }

  // Throws InvalidPlan with the place, then the message.
  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw InvalidPlan(text() + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  // Returns `value` if it is in [low, high).
  template <typename Int>
  Int in_range(Int value, std::int64_t low, std::int64_t high, std::string_view what) const {
    const auto number = static_cast<std::int64_t>(value);
    if (number < low || number >= high) {
      fail("expected {} in [{}, {}), found {}", what, low, high, number);
    }
    return value;
  }
};

}  // namespace contextile
