// Times in comparisons: predicted ones, and predicted compared with measured ones.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "report/comparison_tables.h"
#include "report/table.h"
#include "report/time_order.h"

namespace contextile {

// Predicted times of a strategy, means over its batches; none when no plan verified.
struct PredictedTimes {
  Cell forward_s;
  Cell backward_s;
  Cell total_s;
  Cell of_bound;  // total over the bounds' total: 1 or more
  Cell exposed;   // share of the total in which devices wait for transfers
  Cell mfu;
  Cell layer_s;   // with linear layers
  Cell uneven_s;  // the part of it that uneven tokens cost
};
[[nodiscard]] PredictedTimes predicted_times(const ComparedStrategy& comparison);
[[nodiscard]] double mean_planning_s(const ComparedStrategy& comparison);
// The predicted times of one batch and its bound.
[[nodiscard]] Json prediction_json(const Simulation& simulation, const BatchBound& bound);

// Predicted and planning times, means over batches.
[[nodiscard]] Table prediction_table(std::span<const ComparedStrategy> comparisons);
// Predicted times of a layer: attention, linear layers, their part that uneven tokens cost, and the
// sum over the best one.
[[nodiscard]] Table layer_table(std::span<const ComparedStrategy> comparisons);
// Predicted and measured times of executed strategies, sums over batches.
[[nodiscard]] Table fidelity_table(std::span<const ComparedStrategy> comparisons,
                                   std::span<const StrategyRuns> runs);
// How well predicted times order the executed strategies.
struct Agreement {
  std::optional<double> rank_correlation;  // Spearman's
  PairOrder pairs;
};
[[nodiscard]] Agreement agreement(std::span<const StrategyRuns> runs);
// Two lines; none for fewer than two executed strategies.
[[nodiscard]] std::string agreement_text(const Agreement& agreement);

}  // namespace contextile
