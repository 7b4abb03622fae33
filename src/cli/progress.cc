#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "report/table.h"

namespace contextile {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";
std::atomic<bool> on_screen = false;  // NOTE: global because signals are

std::string duration_text(double seconds) {
  constexpr double kMinute = 60;
  constexpr double kHour = 60 * kMinute;
  if (seconds < 2 * kMinute) return fmt::format("{:.0f} s", std::max(1.0, seconds));
  if (seconds < 2 * kHour) return fmt::format("{:.0f} min", seconds / kMinute);
  return fmt::format("{:.0f} h", seconds / kHour);
}

}  // namespace

double seconds_left(double elapsed_s, double share_done) {
  constexpr double kTooEarly_s = 1;
  if (elapsed_s < kTooEarly_s || share_done <= 0) return -1;
  return elapsed_s * (1 - share_done) / share_done;
}

std::string progress_text(double share_done, std::string_view what, double left_s) {
  constexpr double kBarColumns = 24;
  const double share = std::clamp(share_done, 0.0, 1.0);
  const auto filled = static_cast<std::size_t>(kBarColumns * share);
  const std::string bar =
      std::string(filled, '#') + std::string(static_cast<std::size_t>(kBarColumns) - filled, '.');
  const std::string left = left_s < 0 ? "" : fmt::format(", {} left", duration_text(left_s));
  const std::string begin = fmt::format("[{}] {:3.0f}% ", bar, 100 * share);
  // The name of the step may be long; the time left stays.
  const std::size_t room =
      kTextColumns - 1 - std::min(kTextColumns - 1, begin.size() + left.size());
  return begin + std::string(what.substr(0, room)) + left;
}

ProgressBar::ProgressBar(std::int64_t num_steps)
    : shown_(isatty(STDERR_FILENO) == 1), num_steps_(num_steps) {}

ProgressBar::~ProgressBar() {
  if (on_screen) std::fputs(kClearLine.data(), stderr);
  on_screen = false;
}

void ProgressBar::step(std::string_view what) { step(begun_, num_steps_, what); }

void ProgressBar::step(std::int64_t done, std::int64_t num_steps, std::string_view what) {
  begun_ = done + 1;
  num_steps_ = num_steps;
  step_ = num_steps > 1 ? fmt::format("{}/{} {}", begun_, num_steps, what) : std::string(what);
  last_shown_ = {};
  show("", 0);
}

ProgressHook ProgressBar::within_step() {
  if (!shown_) return {};
  return [this](std::string_view phase, std::int64_t done, std::int64_t total) {
    show(phase, total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0);
  };
}

void ProgressBar::show(std::string_view phase, double share_of_step) {
  constexpr auto kBetween = std::chrono::milliseconds(100);
  const Clock::time_point now = Clock::now();
  if (!shown_ || now - last_shown_ < kBetween) return;
  last_shown_ = now;
  const auto over = static_cast<double>(std::max<std::int64_t>(begun_, 1) - 1);
  const double share =
      (over + share_of_step) / static_cast<double>(std::max<std::int64_t>(num_steps_, 1));
  const double elapsed_s = std::chrono::duration<double>(now - start_).count();
  const std::string what = phase.empty() ? step_ : fmt::format("{}: {}", step_, phase);
  on_screen = true;
  // fmt::print would throw where stderr cannot be written.
  std::fputs(kClearLine.data(), stderr);
  std::fputs(progress_text(share, what, seconds_left(elapsed_s, share)).c_str(), stderr);
  std::fflush(stderr);
}

void clear_progress() noexcept {
  if (!on_screen) return;
  const ssize_t ignored = ::write(STDERR_FILENO, kClearLine.data(), kClearLine.size());
  static_cast<void>(ignored);
}

}  // namespace contextile
