// What the library reports (statistics, verification, a run) as tables and JSON objects. Commands
// share these, so that a number has one name and one unit everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/table.h"
#include "planner/plan_batch.h"
#include "contextile/cluster.h"
#include "contextile/plan.h"
#include "contextile/executor.h"

namespace contextile {

// Lines "strategy   magi (chunk=512)", "cluster …", "batch …", …
[[nodiscard]] std::string describe_plan(const Plan& plan);
[[nodiscard]] Json plan_json(const Plan& plan);
// Name and shape.
[[nodiscard]] Json cluster_json(const Cluster& cluster);

// One row a quantity, one column a direction.
[[nodiscard]] std::string statistics_text(const PlanStats& statistics);
[[nodiscard]] Json statistics_json(const PlanStats& statistics);

// Violations and warnings one a line, then the verdict.
[[nodiscard]] std::string verify_text(const VerifyReport& report, bool colour);
[[nodiscard]] Json verify_json(const VerifyReport& report);

// Errors beside one device's and their bounds, time, bytes against the prediction, memory.
[[nodiscard]] std::string run_text(const RunReport& report, bool colour);
[[nodiscard]] Json run_json(const RunReport& report);

// One line for each thing wrong in a run that is not ok(): what, expected, found.
[[nodiscard]] std::vector<std::string> run_failures(const RunReport& report);

}  // namespace contextile
