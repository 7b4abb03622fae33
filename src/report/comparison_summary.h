// A comparison on part of a screen: the best few strategies, and the rest in a line.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "contextile/planner.h"
#include "report/comparison_tables.h"
#include "report/table.h"

namespace contextile {

// Bytes, imbalance, memory and predicted time of the `rows` strategies with the least predicted
// time, the fastest first. Times are sums of both directions, means over batches. Strategies
// without a verified plan are left out.
[[nodiscard]] Table fastest_table(std::span<const ComparedStrategy> comparisons, std::size_t rows);
// "9 more take 5.672 to 38.59 ms (ring); ulysses does not apply": the strategies that fastest_table
// leaves out.
[[nodiscard]] std::string others_text(std::span<const ComparedStrategy> comparisons,
                                      std::size_t rows);

// The `rows` strategies with the least measured time: this time, the bytes moved next to those of
// the plan, and the largest errors next to their bounds. Strategies that were not executed are left
// out.
[[nodiscard]] Table fastest_run_table(std::span<const ComparedStrategy> comparisons,
                                      std::span<const StrategyRuns> runs, std::size_t rows);
// One line: all executed strategies are exact, or so many are not.
[[nodiscard]] std::string runs_text(std::span<const ComparedStrategy> comparisons,
                                    std::span<const StrategyRuns> runs);

}  // namespace contextile
