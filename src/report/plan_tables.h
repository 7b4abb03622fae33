// Statistics and verification of plans as tables and JSON objects. Front ends share these, so that
// a number has one name and one unit everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/plan.h"
#include "contextile/verify.h"
#include "report/table.h"

namespace contextile {

// Lines "strategy   magi (chunk=512)", "cluster …", "batch …", …
[[nodiscard]] std::string describe_plan(const Plan& plan);
[[nodiscard]] Json plan_json(const Plan& plan);
// Name and shape.
[[nodiscard]] Json cluster_json(const Cluster& cluster);

// One row per quantity, one column per direction.
[[nodiscard]] std::string statistics_text(const PlanStats& statistics);
[[nodiscard]] Json statistics_json(const PlanStats& statistics);

// Violations and warnings one per line, then the verdict.
[[nodiscard]] std::string verify_text(const VerifyReport& report, bool colour);
[[nodiscard]] Json verify_json(const VerifyReport& report);

}  // namespace contextile
