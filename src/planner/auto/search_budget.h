// The limits of a search, and its progress.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "contextile/base.h"

namespace contextile {

// A limit in steps. A step is about a microsecond of one core, by the costs of candidates on one
// machine (docs/auto.md). Unlike time it is the same on every machine, and so is the plan found.
class StepBudget {
 public:
  explicit StepBudget(std::int64_t limit) : limit_(limit) {}

  // Returns true if the steps so far and these are within that share of the limit.
  [[nodiscard]] bool fits(std::int64_t steps, double share) const {
    return static_cast<double>(spent_ + steps) <= share * static_cast<double>(limit_);
  }
  // Spends the steps if they fit. Returns false, and spends none, if they do not.
  [[nodiscard]] bool spend(std::int64_t steps, double share) {
    if (!fits(steps, share)) return false;
    spent_ += steps;
    return true;
  }
  // Replaces the count of steps spent so far.
  void correct(std::int64_t spent) { spent_ = spent; }

 private:
  std::int64_t limit_;
  std::int64_t spent_ = 0;
};

// Reports the progress of a search to a hook, from any thread. The search goes through phases,
// whose shares of the whole are guesses; the number of candidates of a phase grows as it runs.
class SearchProgress {
 public:
  explicit SearchProgress(const ProgressHook& hook) : hook_(hook) {}

  // Begins the phase that ends when that share of the search is done.
  void begin_phase(double end_share) {
    begin_share_ = end_share_;
    end_share_ = end_share;
    expected_ = done_ = 0;
  }
  // Adds candidates that will be tried in this phase.
  void expect(std::int64_t candidates) { expected_ += candidates; }
  void one_done(std::string_view what) {
    if (!hook_) return;
    const std::scoped_lock lock(mutex_);
    ++done_;
    const double part =
        std::min(1.0, static_cast<double>(done_) / static_cast<double>(std::max(expected_, done_)));
    tell(what, begin_share_ + part * (end_share_ - begin_share_));
  }
  void all_done(std::string_view what) {
    if (hook_) tell(what, 1);
  }

 private:
  static constexpr std::int64_t kParts = 1000;

  void tell(std::string_view what, double share) {
    told_ = std::max(told_, static_cast<std::int64_t>(share * kParts));
    hook_(what, told_, kParts);
  }

  const ProgressHook& hook_;
  std::mutex mutex_;
  double begin_share_ = 0;
  double end_share_ = 0;
  std::int64_t expected_ = 0;
  std::int64_t done_ = 0;
  std::int64_t told_ = 0;
};

// Costs of candidates, in steps. `tiles` and `units`, which are blocks, count all head groups; for
// rows, which are placed with all heads, one. Simulating is fitted to the CPU time of 600
// placements on 32 devices (2026-11-26, one core of an AMD EPYC). Placing tiles is fitted to that
// of 1200 on 16 to 128 devices: 1 to 32 head groups, blocks of 512 to 2048 tokens, documents of 16
// tokens and more. The others are fitted to that of whole searches. A coefficient that is too small
// breaks a limit in time, one that is too large leaves time unused. `build/auto_bench --steps N`
// prints the CPU time of limits in steps, `build/budget_bench` that of limits in time; `contextile
// plan --explain --strategy auto:budget_ms=N` shows the phase.
constexpr std::int64_t steps_of_placing(double effort, std::int64_t devices, std::int64_t sequences,
                                        std::int64_t head_groups, std::int64_t units,
                                        std::int64_t tiles) {
  // Annealing runs on coarse tiles. The devices decide their number, but every document has at
  // least one of each head group.
  const std::int64_t uncoarsened =
      std::max<std::int64_t>(0, std::min(tiles, sequences * head_groups) - 60 * devices);
  const std::int64_t annealing = 9 * std::min(tiles, 60 * devices) +
                                 61 * std::min(head_groups * devices, tiles / 4) + 26 * uncoarsened;
  return 400 + units + tiles / 5 +
         static_cast<std::int64_t>(effort * static_cast<double>(annealing));
}
constexpr std::int64_t steps_of_placing_rows(double effort, std::int64_t rows, std::int64_t tiles) {
  const double keys_of_row = static_cast<double>(tiles) / static_cast<double>(rows);
  return static_cast<std::int64_t>(effort * (14'000 + 250 * keys_of_row)) + 2 * rows + tiles / 10;
}
constexpr std::int64_t steps_of_simulating(std::int64_t devices, std::int64_t tiles) {
  return 60 * devices + 17 * tiles / 20;
}
// The first half of simulating a candidate.
constexpr std::int64_t steps_of_arranging(std::int64_t devices, std::int64_t tiles) {
  return steps_of_simulating(devices, tiles) / 2;
}
// Cost of dcp's partitioning and arranging, with as many head groups as KV heads; `blocks` and
// `tiles` are those of one. Fitted on 2026-11-30 to 24 plans of 32 and 128 devices with 8 and 32 KV
// heads, 832 to 4.2 million tiles: half to one and a half of the CPU time.
constexpr std::int64_t steps_of_partitioning(std::int64_t devices, std::int64_t head_groups,
                                             std::int64_t blocks, std::int64_t tiles) {
  return head_groups * (130 * devices + 9 * tiles / 2) + 90 * blocks;
}
// Cost of arranging another strategy.
constexpr std::int64_t steps_of_other_strategy(std::int64_t devices, std::int64_t tokens,
                                               std::int64_t sequences) {
  return (500 + devices * tokens / 2048 + 200 * sequences + devices * devices * devices / 80) / 8;
}
// Cost of arranging tiles in a requested block size. Measured with two million tiles: rules take
// 0.05 to 0.1 us for each, rules that split heads 0.3 to 0.5, searches 0.4.
constexpr std::int64_t steps_of_blocks(bool by_search, std::int64_t tiles) {
  return by_search ? tiles / 2 : tiles / 10;
}
constexpr std::int64_t steps_of_searching_strategy(std::int64_t devices, std::int64_t tokens,
                                                   std::int64_t sequences) {
  return steps_of_other_strategy(devices, tokens, sequences) + devices * devices * devices / 112;
}

}  // namespace contextile
