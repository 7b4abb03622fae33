// Predictions held against measured times, as tables, text and JSON.
#pragma once

#include <string>

#include "contextile/advanced/validation.h"
#include "report/table.h"

namespace contextile {

// Every row: measured and predicted time and their ratio; the reason of rows without a prediction
// is their note.
[[nodiscard]] Table held_rows_table(const Validation& validation);
// The ratios of each source, method and split.
[[nodiscard]] Table held_methods_table(const Validation& validation);
// Kendall's tau of each experiment.
[[nodiscard]] Table held_experiments_table(const Validation& validation);

// All three, as text: validation_text without a bool has no colours.
[[nodiscard]] std::string validation_text(const Validation& validation, bool colour);
// {"rows": […], "methods": […], "experiments": […], "unpredicted": […]}.
[[nodiscard]] Json validation_json(const Validation& validation);

}  // namespace contextile
