// The predicted time of a plan that `plan` made, next to that of another method.
#pragma once

#include <optional>
#include <string>

#include "contextile/cluster.h"
#include "contextile/planner.h"
#include "contextile/workload.h"
#include "report/table.h"

namespace contextile {

// Times are of attention, one layer of every mask, both directions.
struct PlanPrediction {
  double time_us = 0;
  double waiting = 0;  // share of the time that devices wait for transfers, a mean
  // The best other method that auto simulated, or zigzag for other strategies. Empty if there is
  // none.
  std::string other;
  double other_us = 0;
  bool is_searched = false;  // a search simulated the other method
};

// Predicts a plan that verifies. Costs one simulation, and zigzag's plan with another one if the
// strategy does not search.
[[nodiscard]] PlanPrediction predict_planned(const Workload& workload, const Cluster& cluster,
                                             const StrategyChoice& choice,
                                             const PlannedBatch& planned,
                                             const PlanOptions& options);
// Lines "predicted 16.65 ms for one layer of attention; devices wait 4.5% of it".
[[nodiscard]] std::string prediction_text(const PlanPrediction& prediction);
// "time_s", "waiting", "other", "other_s".
[[nodiscard]] Json prediction_json(const PlanPrediction& prediction);

}  // namespace contextile
