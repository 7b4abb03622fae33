// A comparison on part of a screen: the best few strategies, and the rest in a line.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "contextile/planner.h"
#include "report/comparison_tables.h"
#include "report/table.h"
#include "report/waiting.h"

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

// One row for each strategy: time of a layer, how many times as fast it is as the strategy `now`,
// attention alone, the share of it that devices wait, bytes, balance, memory. The fastest layer
// comes first; strategies without numbers come last and say why.
[[nodiscard]] Table sorted_table(std::span<const ComparedStrategy> comparisons, std::size_t now);
// The predicted time of a layer by `now` over that of another strategy; empty if either has none.
[[nodiscard]] Cell speed_of_now(const ComparedStrategy& comparison, const ComparedStrategy& now);
// "auto is predicted 1.83 times as fast as zigzag, which waits 37% of its attention time, mostly
// for one NIC per node." `waiting` is that of `now`.
[[nodiscard]] std::string now_sentence(std::span<const ComparedStrategy> comparisons,
                                       std::size_t now, const Waiting& waiting);

}  // namespace contextile
