// A plan as Python holds it, with what is known of how it was made.
#pragma once

#include <nanobind/stl/variant.h>

#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "contextile/cluster.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"

namespace contextile::python {

struct PlanObject {
  std::shared_ptr<const Plan> plan;
  std::optional<Cluster> cluster = {};  // it was planned for, where that is known
  double arrange_s = 0;                 // 0 where it was not made here
  double build_s = 0;
  double verify_s = 0;
  std::optional<SearchReport> search = {};  // of a strategy that searches in phases
};

// A cluster, or a text as Cluster.load takes it.
using MaybeCluster = std::optional<std::variant<Cluster, std::string>>;
// The cluster asked for, or else the plan's own. Throws InvalidArgument where there is none.
[[nodiscard]] Cluster cluster_for(const PlanObject& plan, const MaybeCluster& asked);

}  // namespace contextile::python
