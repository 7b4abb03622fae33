// A plan as Python holds it, with its origin if known.
#pragma once

#include <nanobind/stl/variant.h>

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "contextile/cluster.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"

namespace contextile::python {

struct PlanObject {
  std::shared_ptr<const Plan> plan;
  std::optional<Cluster> cluster = {};  // it was planned for, if known
  double arrange_s = 0;                 // 0 if it was not made here
  double build_s = 0;
  double verify_s = 0;
  std::optional<SearchReport> search = {};  // of a strategy that searches in phases
};

// Returns a plan that was made for the cluster. Throws CheckFailed, with the strategy's name, when
// it does not verify.
[[nodiscard]] PlanObject object_of(PlannedBatch planned, const Cluster& cluster,
                                   const std::string& strategy);

// Binds the lists of plans, and Plan.stages (stages.cc).
void bind_stages(nanobind::module_& module, nanobind::class_<PlanObject>& plan);

// A cluster, or a text that Cluster.load takes.
using MaybeCluster = std::optional<std::variant<Cluster, std::string>>;
// Returns the given cluster, or else the plan's own. Throws InvalidArgument if there is none.
[[nodiscard]] Cluster cluster_for(const PlanObject& plan, const MaybeCluster& asked);

}  // namespace contextile::python
