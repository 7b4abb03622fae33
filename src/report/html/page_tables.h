// The tables of a page: everything in them is readable without scripts.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "contextile/bounds.h"
#include "contextile/plan.h"
#include "contextile/report.h"
#include "contextile/simulate.h"
#include "report/html/text.h"

namespace contextile {

// A plan with what is computed from it once.
struct ReportSubject {
  const ReportedPlan& reported;
  PlanStats stats;
  std::optional<TimeBound> forward_bound;
  std::optional<TimeBound> backward_bound;
  std::array<std::array<double, 6>, 2> path_us;  // critical path, by direction and StepKind

  [[nodiscard]] const std::optional<DirectionStats>& stats_of(Direction direction) const {
    return direction == Direction::kForward ? stats.forward : stats.backward;
  }
  [[nodiscard]] const std::optional<SimulatedDirection>& simulated(Direction direction) const {
    return direction == Direction::kForward ? reported.simulation.forward
                                            : reported.simulation.backward;
  }
  [[nodiscard]] const std::optional<TimeBound>& bound_of(Direction direction) const {
    return direction == Direction::kForward ? forward_bound : backward_bound;
  }
};
using ReportSubjects = std::span<const ReportSubject>;

// "dcp" or, if there are two plans, "A: dcp".
[[nodiscard]] std::string short_name(ReportSubjects subjects, std::size_t i);

// The few numbers to look at first.
[[nodiscard]] std::string headline_html(ReportSubjects subjects);
// One row per fact, one column per plan.
[[nodiscard]] std::string facts_html(ReportSubjects subjects);
// One row per quantity, and a column for every direction and plan, with B / A if there are two.
[[nodiscard]] std::string statistics_html(ReportSubjects subjects);
// Simulated time, the time that no plan undercuts, and the parts of that one.
[[nodiscard]] std::string bounds_html(ReportSubjects subjects);
// One row per device.
[[nodiscard]] std::string devices_html(const ReportSubject& subject);
// Bytes from node to node for up to 16 nodes; empty beyond.
[[nodiscard]] std::string node_traffic_html(const Plan& plan);

}  // namespace contextile
