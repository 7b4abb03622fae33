// From a workload to a verified plan: the one way `plan`, `compare` and `demo` make plans.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/options/input.h"
#include "contextile/plan.h"
#include "contextile/strategy.h"

namespace contextile {

struct PlannedBatch {
  std::shared_ptr<const Plan> plan;
  PlanStats statistics;
  VerifyReport verified;
  double arrange_s = 0;
  double build_s = 0;
  double verify_s = 0;

  [[nodiscard]] double planning_s() const { return arrange_s + build_s; }
};

// "name" or "name:key=value,…", as given.
[[nodiscard]] std::string choice_text(const StrategyChoice& choice);

// Why the strategy cannot plan this batch, or nothing. Throws InvalidArgument on an unknown
// strategy or bad options.
[[nodiscard]] std::optional<std::string> unsupported_reason(const StrategyChoice& choice,
                                                            const Input& input,
                                                            const Workload& workload);

// Arranges, builds, verifies and times. Throws as Strategy::arrange and build_plan do.
[[nodiscard]] PlannedBatch plan_batch(const StrategyChoice& choice, const Input& input,
                                      const Workload& workload);

// FLOPs of checking every mask of a plan against the oracle once, all heads.
[[nodiscard]] double oracle_flops(const Plan& plan);

// Throws InvalidArgument when executing the plan on this machine would need more memory than it
// has.
void check_run_memory(const Plan& plan, const PlanStats& statistics);

}  // namespace contextile
