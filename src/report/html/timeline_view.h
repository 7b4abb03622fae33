// Forward and backward on every device over time, from a simulation.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "contextile/plan.h"
#include "contextile/simulate.h"
#include "report/html/text.h"

namespace contextile {

struct TimelinePicture {
  // One object a direction: "direction", "time_us", "programs" (name, start_us, end_us), and
  //   "spans": of every device their number, then for each: ns since the last one's end, ns, what
  //     (index in Instruction), and three numbers about it: tiles, pairs and MFLOP of attention,
  //     block, group and kind of reduce and copy, id, sends and receives of a launch, id of a wait;
  //   or "activity_bins": "bins" equal parts of time for every device, "runs" of equal ones:
  //     how many, and the shares of attention, merge, launch and exposed time in 1/100;
  //   "messages": source, destination, bytes, start in ns (difference), ns;
  //   or "message_bins": likewise, with the shares of time that anything is sent, received;
  //   "path" and, with "spans", "waits" (timeline_why.h), where they fit.
  ReportJson json;
  std::vector<std::string> notes;
};

// Every span, every message: each while both directions take at most `budget_bytes` for them, else
// as many bins as do; the critical path and the reasons of waits while they take at most as much
// again each. The simulation is of the plan on the cluster and has a timeline.
[[nodiscard]] TimelinePicture timeline_picture(const Plan& plan, const Cluster& cluster,
                                               const Simulation& simulation,
                                               std::size_t budget_bytes);

}  // namespace contextile
