// Why a plan takes its simulated time: critical path, largest causes, longest waits.
#pragma once

#include <string>
#include <vector>

#include "contextile/plan.h"
#include "contextile/simulate.h"
#include "report/table.h"

namespace contextile {

// The cause, "device 3 computes 1.75x the mean", and the change with which the plan was simulated
// to find its cost, "attention spread evenly over the devices".
struct CauseText {
  std::string what;
  std::string remedy;
};
[[nodiscard]] CauseText cause_text(const TimeCause& cause, const Plan& plan,
                                   const Cluster& cluster);

// `simulation` is of `plan` on `cluster` and has a timeline; `causes` are those of this simulation.
[[nodiscard]] std::string why_text(const Plan& plan, const Cluster& cluster,
                                   const Simulation& simulation,
                                   const std::vector<TimeCause>& causes);
// "critical_path", "causes", "longest_waits" (docs/cli.md).
[[nodiscard]] Json why_json(const Plan& plan, const Cluster& cluster, const Simulation& simulation,
                            const std::vector<TimeCause>& causes);

}  // namespace contextile
