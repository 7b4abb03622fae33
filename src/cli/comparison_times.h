// Times in comparisons: predicted ones, and predicted beside measured ones.
#pragma once

#include <optional>
#include <span>

#include "cli/comparison.h"
#include "cli/output.h"
#include "contextile/simulate.h"

namespace contextile {

// Predicted times of a strategy, means over its batches; none when no plan verified.
struct PredictedTimes {
  Cell forward_s;
  Cell backward_s;
  Cell total_s;
  Cell of_bound;  // total over the bounds' total: 1 or more
  Cell exposed;   // share of the total that devices wait for transfers
  Cell mfu;
};
[[nodiscard]] PredictedTimes predicted_times(const Comparison& comparison);
[[nodiscard]] double mean_planning_s(const Comparison& comparison);
[[nodiscard]] BatchBound bound_beside(const Plan& plan, const Workload& workload,
                                      const Cluster& cluster, const Simulation& simulation);
// Of one batch.
[[nodiscard]] Json prediction_json(const Simulation& simulation, const BatchBound& bound);

// Predicted and planning times, means over batches.
[[nodiscard]] Table prediction_table(std::span<const Comparison> comparisons);
// Predicted beside measured times of executed strategies, sums over batches.
[[nodiscard]] Table fidelity_table(std::span<const Comparison> comparisons);
// Spearman's, of predicted and measured times of the executed strategies.
[[nodiscard]] std::optional<double> rank_correlation(std::span<const Comparison> comparisons);

}  // namespace contextile
