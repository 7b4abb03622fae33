// Texts of failures, also where no memory is left for the words.
#pragma once

#include <fmt/format.h>

#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "contextile/base.h"

namespace contextile {

// Returns the formatted text, or a text of so few characters that it takes no memory. Without it,
// abort() and destructors, which may not throw, would end the process.
template <typename... Args>
[[nodiscard]] std::string failure_text(fmt::format_string<Args...> format,
                                       Args&&... args) noexcept {
  try {
    return fmt::format(format, std::forward<Args>(args)...);
  } catch (const std::bad_alloc&) {
    return "out of memory";
  }
}

[[nodiscard]] inline std::string gave_up_text(Rank rank, std::string_view reason) noexcept {
  return failure_text("rank {} gave up: {}", rank.value, reason);
}

}  // namespace contextile
