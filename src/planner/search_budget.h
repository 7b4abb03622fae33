// What a search may spend, and how far it has come.
#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>

#include "contextile/progress.h"

namespace contextile {

// A limit in steps. A step is about a microsecond of one core, by what candidates cost on one
// machine (docs/auto.md): unlike time it is the same on every machine, and so is what is found.
class StepBudget {
 public:
  explicit StepBudget(std::int64_t limit) : limit_(limit) {}  // 0: none

  // Takes the steps if no more than that share of the limit is taken with them.
  [[nodiscard]] bool take(std::int64_t steps, double share) {
    if (limit_ > 0 && static_cast<double>(taken_ + steps) > share * static_cast<double>(limit_)) {
      return false;
    }
    force(steps);
    return true;
  }
  // Takes them whatever the limit: without a first candidate there is no plan.
  void force(std::int64_t steps) { taken_ += steps; }

  [[nodiscard]] bool limited() const { return limit_ > 0; }

 private:
  std::int64_t limit_;
  std::int64_t taken_ = 0;
};

// Counts candidates for a hook, from any thread.
class SearchProgress {
 public:
  explicit SearchProgress(const ProgressHook& hook) : hook_(hook) {}

  // More candidates are known to come.
  void expect(std::int64_t candidates) { total_ += candidates; }
  void one_done(std::string_view what) {
    if (!hook_) return;
    const std::scoped_lock lock(mutex_);
    ++done_;
    hook_(what, done_, total_);
  }

 private:
  const ProgressHook& hook_;
  std::mutex mutex_;
  std::int64_t done_ = 0;
  std::int64_t total_ = 0;
};

// What candidates cost, in steps (docs/auto.md has the measurements). `tiles` and `units`, which
// are blocks, are those of all head groups.
constexpr std::int64_t steps_of_placing(std::int64_t devices, std::int64_t units,
                                        std::int64_t tiles) {
  return 1300 * devices + 60 * units + tiles;
}
constexpr std::int64_t steps_of_simulating(std::int64_t devices, std::int64_t tiles) {
  return 150 * devices + 2 * tiles;
}
constexpr std::int64_t steps_of_other_strategy(std::int64_t devices, std::int64_t tokens,
                                               std::int64_t sequences) {
  return 2000 + 12 * devices * tokens / 1024 + 200 * sequences;
}

}  // namespace contextile
