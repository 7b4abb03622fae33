// The resource that limits a plan on a cluster.
#pragma once

#include <string>

#include "contextile/cluster.h"
#include "contextile/plan.h"

namespace contextile {

// The one of "compute", "inter-node", "intra-node" and "latency" that would shorten the plan most
// if it were free. Four simulations.
[[nodiscard]] std::string binding_of(const Plan& plan, const Cluster& cluster);

}  // namespace contextile
