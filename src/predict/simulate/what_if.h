// The simulation of a plan in another world than its own: what causes of time are measured by.
#pragma once

#include <vector>

#include "contextile/simulate.h"

namespace contextile {

// Beyond what the cluster says.
struct WhatIf {
  std::vector<NetworkPort> unlimited = {};  // ports that carry anything at once
  // Every stage's attention, from one wait to the next, is on every device as long as the mean.
  // Instructions may then have other numbers than the plan's.
  bool even_attention = false;
  bool without_barriers = false;  // a device goes on to its next round when it is done
};

// As `simulate`, which asks nothing. Without barriers the programs of a mask's rounds are one, of
// round 0.
[[nodiscard]] Simulation simulate_if(const Plan& plan, const Cluster& cluster,
                                     const SimulateOptions& options, const WhatIf& what_if);

}  // namespace contextile
