// Wall time that passes while something runs.
#pragma once

#include <chrono>

namespace contextile {

using Clock = std::chrono::steady_clock;

// Seconds since `start`.
[[nodiscard]] inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace contextile
