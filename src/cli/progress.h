// How far a long loop has come.
#pragma once

#include <cstdint>
#include <string_view>

namespace contextile {

// One line on stderr; silent unless stderr is a terminal, gone when the object is.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Step `done` of `total`, counted from 0, begins now.
  void show(std::int64_t done, std::int64_t total, std::string_view what) const;

 private:
  bool shown_;
};

// A progress line for a loop that counts its own steps.
class ProgressBar {
 public:
  explicit ProgressBar(std::int64_t total) : total_(total) {}
  // Names the step that begins now.
  void step(std::string_view what) { line_.show(done_++, total_, what); }

 private:
  ProgressLine line_;
  std::int64_t total_;
  std::int64_t done_ = 0;
};

// Clears the line of the process's progress, if one is shown. For a signal handler: calls nothing
// that is not async-signal-safe.
void clear_progress() noexcept;

}  // namespace contextile
