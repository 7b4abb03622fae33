// Contract checks, formatted errors, checked narrowing.
#pragma once

#include <fmt/format.h>

#include <limits>
#include <string_view>
#include <utility>

#include "contextile/base.h"

namespace contextile {

template <typename... Args>
[[noreturn]] void fail_argument(fmt::format_string<Args...> format, Args&&... args) {
  throw InvalidArgument(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
[[noreturn]] void fail_plan(fmt::format_string<Args...> format, Args&&... args) {
  throw InvalidPlan(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
[[noreturn]] void fail_io(fmt::format_string<Args...> format, Args&&... args) {
  throw IoError(fmt::format(format, std::forward<Args>(args)...));
}

// Narrowing that throws InvalidArgument instead of wrapping.
template <typename To, typename From>
[[nodiscard]] To checked_cast(From value, std::string_view what) {
  if (!std::in_range<To>(value)) {
    fail_argument("{}: expected at most {}, found {}", what, std::numeric_limits<To>::max(), value);
  }
  return static_cast<To>(value);
}

}  // namespace contextile

// The contract of a public function: throws InvalidArgument with the message (a format string and
// arguments).
#define CONTEXTILE_CHECK(condition, ...)        \
  do {                                          \
    if (!(condition)) {                         \
      ::contextile::fail_argument(__VA_ARGS__); \
    }                                           \
  } while (false)

// An internal invariant, checked in debug builds only. A failure is a bug of the library.
#ifdef NDEBUG
#define CONTEXTILE_DCHECK(condition) \
  do {                               \
  } while (false)
#else
#define CONTEXTILE_DCHECK(condition)                                                         \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      throw ::contextile::Error(                                                             \
          fmt::format("internal error: {} fails at {}:{}", #condition, __FILE__, __LINE__)); \
    }                                                                                        \
  } while (false)
#endif
