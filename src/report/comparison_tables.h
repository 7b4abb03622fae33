// Strategies side by side, as tables and JSON.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/planner.h"
#include "report/table.h"

namespace contextile {

// How one strategy's plans were executed.
struct StrategyRuns {
  std::vector<RunReport> reports;     // one per batch
  std::vector<Simulation> predicted;  // of each, on the machine that executed it
};
// `runs` below has an entry for every compared strategy, or is empty if nothing was executed.

// True if nothing is wrong with plans and runs, or if the strategy does not apply.
[[nodiscard]] bool compared_ok(const ComparedStrategy& compared, const StrategyRuns& runs);

// Bytes, balance, memory, planning time and predicted times: means over batches, memory the
// largest. Text shows all but the times.
[[nodiscard]] Table planning_table(std::span<const ComparedStrategy> comparisons);
// Error against the oracle and bytes moved against the prediction.
[[nodiscard]] Table execution_table(std::span<const ComparedStrategy> comparisons,
                                    std::span<const StrategyRuns> runs);
[[nodiscard]] Json comparisons_json(std::span<const ComparedStrategy> comparisons,
                                    std::span<const StrategyRuns> runs);
// The compared inputs and the tables; `run_seed` is the seed of the executed inputs.
[[nodiscard]] std::string comparison_text(const PlanInput& input,
                                          std::span<const ComparedStrategy> comparisons,
                                          std::span<const StrategyRuns> runs,
                                          std::uint64_t run_seed, bool colour);
// Every violation, error and wrong result, one per line.
[[nodiscard]] std::vector<std::string> failures(std::span<const ComparedStrategy> comparisons,
                                                std::span<const StrategyRuns> runs);

}  // namespace contextile
