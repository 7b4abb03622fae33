#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <string>

#include "cli/output.h"
#include "report/table.h"

namespace contextile {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";
std::atomic<bool> on_screen = false;  // NOTE: global because signals are

}  // namespace

ProgressLine::ProgressLine() : shown_(isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (shown_) fmt::print(stderr, "{}", kClearLine);
  on_screen = false;
}

void ProgressLine::show(std::int64_t done, std::int64_t total, std::string_view what) const {
  if (!shown_) return;
  constexpr std::int64_t kBarColumns = 24;
  const auto filled =
      static_cast<std::size_t>(kBarColumns * done / std::max<std::int64_t>(total, 1));
  const std::string bar = std::string(filled, '#') + std::string(kBarColumns - filled, '.');
  const std::string line = fmt::format("[{}] {}/{} {}", bar, done + 1, total, what);
  on_screen = true;
  fmt::print(stderr, "{}{}", kClearLine, line.substr(0, kTextColumns - 1));
  std::fflush(stderr);
}

void clear_progress() noexcept {
  if (!on_screen) return;
  const ssize_t ignored = ::write(STDERR_FILENO, kClearLine.data(), kClearLine.size());
  static_cast<void>(ignored);
}

}  // namespace contextile
