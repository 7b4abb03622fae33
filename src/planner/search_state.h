// What the parts of a search share: its limits, how far it has come, the best candidate so far.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>

#include "contextile/arrangement.h"
#include "contextile/cluster.h"
#include "contextile/plan.h"
#include "contextile/simulate.h"
#include "contextile/strategies.h"
#include "contextile/strategy.h"
#include "contextile/workload.h"
#include "planner/search_budget.h"

namespace contextile {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

// What a limited search has taken when each part has had its share.
inline constexpr double kShareOfPlacing = 0.4;
inline constexpr double kShareOfSchedules = 0.65;
inline constexpr double kShareOfOptions = 0.85;  // of other strategies with other than defaults
inline constexpr double kShareOfPublished = 0.9;

// Candidates of each part at effort 1, until it is known how many there are.
inline constexpr std::int64_t kMostScheduled = 62;
inline constexpr std::int64_t kMostPublished = 15;
inline constexpr std::int64_t kMostImproved = 120;

// An arrangement with its predicted time.
struct Candidate {
  double time_us = kNever;  // infinity: not tried, or does not fit the device
  std::string chosen;
  Arrangement arrangement;
};

// A plan's times on a cluster; kNever for a direction that exceeds the devices' memory.
struct PlanTimes {
  double forward_us = kNever;
  double backward_us = kNever;
};
[[nodiscard]] PlanTimes times_of(const Plan& plan, const Cluster& cluster,
                                 const Simulation& simulation);

struct SearchState {
  SearchState(const Workload& the_workload, const Cluster& the_cluster,
              const StrategyRequest& the_request, const AutoOptions& the_options)
      : workload(the_workload),
        cluster(the_cluster),
        request(the_request),
        options(the_options),
        budget(the_options.steps),
        progress(the_request.progress),
        start(std::chrono::steady_clock::now()) {}

  [[nodiscard]] double elapsed_us() const {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
        .count();
  }
  [[nodiscard]] bool out_of_time() const { return !has_time_for(0); }
  // Whether so many steps, which are about microseconds, end in that share of the time.
  [[nodiscard]] bool has_time_for(std::int64_t steps, double share = 1) const {
    if (options.budget_ms == 0) return true;
    const double limit_us = share * 1e3 * static_cast<double>(options.budget_ms);
    return elapsed_us() + static_cast<double>(steps) < limit_us;
  }
  [[nodiscard]] bool has_plan() const { return best.time_us < kNever; }
  [[nodiscard]] std::int64_t num_devices() const { return cluster.num_devices(); }

  const Workload& workload;
  const Cluster& cluster;
  const StrategyRequest& request;
  const AutoOptions& options;
  StepBudget budget;
  SearchProgress progress;
  std::chrono::steady_clock::time_point start;
  Candidate best;
  std::int32_t tried = 0;  // plans simulated
};

}  // namespace contextile
