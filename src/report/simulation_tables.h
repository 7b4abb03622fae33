// A simulated plan as tables and JSON, shared by all front ends. Bytes and memory are those of the
// plan's statistics, times those of the simulation.
#pragma once

#include <string>

#include "contextile/plan.h"
#include "contextile/simulate.h"
#include "report/table.h"

namespace contextile {

// `stats` below are those of the plan that was simulated. A direction that the plan lacks has no
// rows.

// One row per direction: time, MFU, the parts of devices' time, bytes, memory.
[[nodiscard]] Table simulation_table(const Simulation& simulation, const PlanStats& stats);
// One row per device and direction. Text has a table for each direction, under its name.
[[nodiscard]] Table simulated_devices_table(const Simulation& simulation, const PlanStats& stats);
[[nodiscard]] std::string simulated_devices_text(const Simulation& simulation,
                                                 const PlanStats& stats);
// One row per quantity, one column per direction.
[[nodiscard]] std::string simulation_text(const Simulation& simulation, const PlanStats& stats);
// "time_s", then "forward" and "backward" with their row, programs and devices (docs/cli.md).
[[nodiscard]] Json simulation_json(const Simulation& simulation, const PlanStats& stats);

}  // namespace contextile
