// Simulates a plan under changed conditions, which measures the causes of its time.
#pragma once

#include <vector>

#include "contextile/advanced/collective_traffic.h"
#include "contextile/simulate.h"

namespace contextile {

// Changes that a cluster cannot describe.
struct WhatIf {
  std::vector<NetworkPort> unlimited = {};  // ports that carry anything at once
  // Every device's attention in a stage, from one wait to the next, takes the mean time of all
  // devices. Instructions may then have other numbers than the plan's.
  bool even_attention = false;
  bool without_barriers = false;  // a device begins its next round as soon as it is done
};

// Like `simulate`, with changed conditions. Without barriers the programs of a mask's rounds are
// one, of round 0.
[[nodiscard]] Simulation simulate_if(const Plan& plan, const Cluster& cluster,
                                     const SimulateOptions& options, const WhatIf& what_if);

// The times at which attention and a collective are both over, µs: of every program of a direction,
// in the order of SimulatedDirection::programs.
struct SharedTimes {
  std::vector<double> forward_us;
  std::vector<double> backward_us;
};

// Simulates the plan while a collective uses the same links. It starts with every program and would
// alone take `load` times as long as that program does in `alone`, the simulation without it.
[[nodiscard]] SharedTimes simulate_shared(const Plan& plan, const Cluster& cluster,
                                          const CollectiveTraffic& traffic, double load,
                                          const Simulation& alone);

}  // namespace contextile
