// --cluster of commands that take a plan.
#pragma once

#include <string>

#include "contextile/cluster.h"
#include "contextile/plan.h"

namespace contextile {

// The cluster to predict on: `text` as --cluster takes it or, if it is empty, the preset that the
// plan names, in the plan's size. Throws InvalidArgument if the plan names no preset, or if the
// cluster has another shape than the plan.
[[nodiscard]] Cluster cluster_of_plan(const Plan& plan, const std::string& text);
// Throws InvalidArgument if the cluster that `text` names has another shape than the plan.
void check_same_cluster(const Plan& plan, const Cluster& cluster, const std::string& text);

}  // namespace contextile
