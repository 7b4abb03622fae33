// What a comparison hangs on, as tables and JSON.
#pragma once

#include <string>

#include "contextile/advanced/sensitivity.h"
#include "report/table.h"

namespace contextile {

// One row a changed constant, the cluster as it is first: who is fastest, by how much, and where
// auto stands. Text names the first of those that take the same time and counts the others.
[[nodiscard]] Table sensitivity_table(const Sensitivity& sensitivity);
// The rows of the table, each with the times of all strategies.
[[nodiscard]] Json sensitivity_json(const Sensitivity& sensitivity);
// The table under what it says, and a sentence about where another strategy is fastest.
[[nodiscard]] std::string sensitivity_text(const Sensitivity& sensitivity, bool colour);

}  // namespace contextile
