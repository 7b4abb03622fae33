// The constants that a comparison depends on, as tables and JSON.
#pragma once

#include <string>

#include "contextile/advanced/sensitivity.h"
#include "report/table.h"

namespace contextile {

// One row per changed constant, first the cluster as it is: the fastest strategy, by how much it
// leads, and the place of auto. Text names the first of those that take the same time and counts
// the others.
[[nodiscard]] Table sensitivity_table(const Sensitivity& sensitivity);
// The rows of the table, each with the times of all strategies.
[[nodiscard]] Json sensitivity_json(const Sensitivity& sensitivity);
// The table under a heading, and a sentence about the constants with which another strategy is
// fastest.
[[nodiscard]] std::string sensitivity_text(const Sensitivity& sensitivity, bool colour);

}  // namespace contextile
