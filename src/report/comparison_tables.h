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

// Largest memory of a device over batches, by micro-batch if the strategy schedules them.
[[nodiscard]] std::int64_t peak_memory_bytes(const ComparedStrategy& comparison);

// Bytes, balance, memory, planning time and predicted times: means over batches, memory the
// largest. Text shows all but the times.
[[nodiscard]] Table planning_table(std::span<const ComparedStrategy> comparisons);
// Error against the oracle and bytes moved against the prediction.
[[nodiscard]] Table execution_table(std::span<const ComparedStrategy> comparisons,
                                    std::span<const StrategyRuns> runs);
[[nodiscard]] Json comparisons_json(std::span<const ComparedStrategy> comparisons,
                                    std::span<const StrategyRuns> runs);
// Number of batches, tokens and sequences, and the cluster; an empty line ends it.
[[nodiscard]] std::string comparison_heading(const PlanInput& input);
// Says which strategies are counted by micro-batch, or why those that could be are not.
[[nodiscard]] std::string schedules_text(const PlanInput& input,
                                         std::span<const ComparedStrategy> comparisons);
// Tables of bytes and balance, of predicted times, and of layers.
[[nodiscard]] std::string detail_text(const PlanInput& input,
                                      std::span<const ComparedStrategy> comparisons, bool colour);
// Tables of executed plans; `run_seed` is the seed of their inputs. Empty without runs.
[[nodiscard]] std::string execution_text(std::span<const ComparedStrategy> comparisons,
                                         std::span<const StrategyRuns> runs, std::uint64_t run_seed,
                                         bool colour);
// The compared inputs and the tables; `run_seed` is the seed of the executed inputs.
[[nodiscard]] std::string comparison_text(const PlanInput& input,
                                          std::span<const ComparedStrategy> comparisons,
                                          std::span<const StrategyRuns> runs,
                                          std::uint64_t run_seed, bool colour);
// Every violation, error and wrong result, one per line.
[[nodiscard]] std::vector<std::string> failures(std::span<const ComparedStrategy> comparisons,
                                                std::span<const StrategyRuns> runs);

}  // namespace contextile
