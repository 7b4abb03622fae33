// The state of the engines, as /health and /metrics show it.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "contextile/serving/engine.h"

namespace contextile {

// The engines' thread records what happens; any thread may read it.
class EngineHealth {
 public:
  // Engines of `num_ranks` ranks are ready, for the first time or again.
  void note_start(std::int32_t num_ranks);
  void note_lost();
  // A step has ended. Returns the number of preemptions since the last one.
  std::int64_t note_step(const Scheduler& scheduler);

  // Returns the HTTP status and the text of /health: "starting", "ok", "degraded: ...",
  // "lost: ...". Engines without the end of a step for `slow_step` are degraded.
  [[nodiscard]] std::pair<int, std::string> now(std::chrono::milliseconds slow_step) const;
  // The text of /metrics, in the format of Prometheus.
  [[nodiscard]] std::string metrics() const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class State : std::uint8_t { kStarting, kRunning, kLost };

  mutable std::mutex mutex_;
  State state_ = State::kStarting;
  std::int32_t ranks_ = 0;
  std::int32_t ranks_at_start_ = 0;
  Clock::time_point last_step_{};
  // The values of the last step.
  EngineStats stats_;
  std::int32_t num_running_ = 0;
  std::int32_t num_waiting_ = 0;
  std::int32_t free_pages_ = 0;
};

}  // namespace contextile
