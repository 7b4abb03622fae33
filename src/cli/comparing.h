// Comparing strategies at the terminal: the common part of `compare` and `demo`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "contextile/advanced/sensitivity.h"
#include "contextile/planner.h"
#include "report/comparison_tables.h"
#include "report/waiting.h"

namespace contextile {

// How plans are executed, on in-process ranks.
struct Execution {
  std::uint64_t seed = 0;               // of the random inputs
  std::int32_t repeats = 1;             // timed repetitions, the fastest counts
  std::string kernel = "";              // empty: the preferred one for the dtype
  std::optional<Cluster> machine = {};  // what to predict these runs on (machine_of_runs)
};

struct ComparisonResult {
  std::vector<ComparedStrategy> compared;
  std::vector<StrategyRuns> runs;  // of every strategy; empty without execution
  std::optional<Sensitivity> sensitivity;
  Waiting now_waits;  // of the strategy `now`
};

// compare_strategies with a line of progress; with `execution` also runs every plan that verifies,
// with `sensitivity` also tries clusters with one constant changed. Also explains the waits of the
// strategy with index `now`. Throws InvalidArgument, too,
// when a batch is too large to execute.
[[nodiscard]] ComparisonResult compare_at_terminal(
    const PlanInput& input, std::span<const StrategyChoice> choices,
    const std::optional<Execution>& execution,
    const std::optional<SensitivityPlans>& sensitivity = std::nullopt,
    std::optional<std::size_t> now = std::nullopt);
// Prints every failure on stderr. Returns true if there is none.
[[nodiscard]] bool report_failures(const ComparisonResult& result);

}  // namespace contextile
