#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "cli/output.h"
#include "report/table.h"

namespace contextile {

ProgressLine::ProgressLine() : shown_(isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

void ProgressLine::show(std::int64_t done, std::int64_t total, std::string_view what) const {
  if (!shown_) return;
  constexpr std::int64_t kBarColumns = 24;
  const auto filled =
      static_cast<std::size_t>(kBarColumns * done / std::max<std::int64_t>(total, 1));
  const std::string bar = std::string(filled, '#') + std::string(kBarColumns - filled, '.');
  const std::string line = fmt::format("[{}] {}/{} {}", bar, done + 1, total, what);
  fmt::print(stderr, "\r\x1b[K{}", line.substr(0, kTextColumns - 1));
  std::fflush(stderr);
}

}  // namespace contextile
