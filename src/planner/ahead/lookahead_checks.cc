#include "planner/ahead/lookahead_checks.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "contextile/advanced/store.h"
#include "contextile/extend/strategy.h"

namespace contextile {

void check_job(const PlanJob& job) {
  check_cluster(job.cluster);
  check_workload_input(job.input);
  const auto budget = job.choice.options.find("budget_ms");
  CONTEXTILE_CHECK(budget == job.choice.options.end() || budget->second == "0",
                   "look-ahead: expected a strategy without a time budget (auto:steps=N), found "
                   "budget_ms={}: its plans would differ from planner to planner",
                   budget->second);
  static_cast<void>(find_strategy(job.choice.name));
}

void check_lookahead_options(const LookaheadOptions& options) {
  constexpr std::int32_t kMaxStepsAhead = 1 << 16;
  constexpr std::int32_t kMaxThreads = 1 << 12;
  CONTEXTILE_CHECK(options.first_step >= 0 && options.end_step >= options.first_step,
                   "look-ahead: expected steps from 0 on, found {} to {}", options.first_step,
                   options.end_step);
  CONTEXTILE_CHECK(options.steps_ahead >= 1 && options.steps_ahead <= kMaxStepsAhead,
                   "look-ahead: expected 1 to {} steps ahead, found {}", kMaxStepsAhead,
                   options.steps_ahead);
  CONTEXTILE_CHECK(options.threads >= 1 && options.threads <= kMaxThreads,
                   "look-ahead: expected 1 to {} threads, found {}", kMaxThreads, options.threads);
  CONTEXTILE_CHECK(
      options.claim_expiry >= std::chrono::milliseconds(3) &&
          options.poll_interval >= std::chrono::milliseconds(1),
      "look-ahead: expected claims of at least 3 ms and looks every 1 ms or more, found "
      "{} and {} ms",
      options.claim_expiry.count(), options.poll_interval.count());
  CONTEXTILE_CHECK(options.store_patience >= std::chrono::milliseconds(0),
                   "look-ahead: expected a patience with the store of 0 ms or more, found {}",
                   options.store_patience.count());
}

void check_fits_store(const std::vector<std::vector<std::uint8_t>>& slices) {
  constexpr std::size_t kMaxHeaderBytes = 1024;
  for (std::size_t r = 0; r < slices.size(); ++r) {
    CONTEXTILE_CHECK(slices[r].size() <= kMaxStoreValueBytes - kMaxHeaderBytes,
                     "rank {}: expected a slice of at most {} bytes, found {}", r,
                     kMaxStoreValueBytes - kMaxHeaderBytes, slices[r].size());
  }
}

}  // namespace contextile
