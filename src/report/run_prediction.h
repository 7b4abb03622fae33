// Predicted times: of a plan on a cluster, and beside measured ones. What `simulate`, `run` and
// `compare` share.
#pragma once

#include <string>

#include "report/table.h"
#include "contextile/cluster.h"
#include "contextile/plan.h"
#include "contextile/executor.h"
#include "contextile/simulate.h"

namespace contextile {

// The cluster to predict on: `text` as --cluster takes it; when it is empty, the preset that the
// plan names, in the plan's size. Throws InvalidArgument when the plan names no preset, or the
// cluster has another shape than the plan.
[[nodiscard]] Cluster cluster_of_plan(const Plan& plan, const std::string& text);
// Throws InvalidArgument when the cluster that `text` stands for has another shape than the plan.
void check_same_cluster(const Plan& plan, const Cluster& cluster, const std::string& text);

// One mask of a plan, all rounds, one layer.
struct MaskPrediction {
  double forward_s = 0;
  double backward_s = 0;
};
[[nodiscard]] MaskPrediction predicted_of_mask(const Simulation& simulation, std::int32_t mask);

// One row a mask and direction: predicted and measured time, predicted over measured.
[[nodiscard]] Table run_prediction_table(const RunReport& report, const Simulation& simulation);

}  // namespace contextile
