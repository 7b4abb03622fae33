// The progress of a command.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "contextile/base.h"

namespace contextile {

// Seconds that the rest will take if it goes on like this; negative, for unknown, in the first
// second or before anything is done.
[[nodiscard]] double seconds_left(double elapsed_s, double share_done);
// "[######..................]  25% 2/8 fcp: building the plan, 12 s left".
[[nodiscard]] std::string progress_text(double share_done, std::string_view what, double left_s);

// One line on stderr, updated a few times per second. It is silent unless stderr is a terminal, and
// goes with the object. It shows named steps, one after another, each of which may report its own
// progress.
class ProgressBar {
 public:
  explicit ProgressBar(std::int64_t num_steps);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Names the step that begins now.
  void step(std::string_view what);
  // The same if the caller counts: `done` of `num_steps` are over.
  void step(std::int64_t done, std::int64_t num_steps, std::string_view what);
  // Returns a hook that reports the progress of the current step. It is for one thread at a time,
  // as long as the bar lives.
  [[nodiscard]] ProgressHook within_step();

 private:
  using Clock = std::chrono::steady_clock;

  void show(std::string_view phase, double share_of_step);

  bool shown_;
  std::int64_t num_steps_;
  std::int64_t begun_ = 0;
  std::string step_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_shown_{};
};

// Clears the line of the process's progress, if one is shown. For a signal handler: it calls
// nothing that is not async-signal-safe.
void clear_progress() noexcept;

}  // namespace contextile
