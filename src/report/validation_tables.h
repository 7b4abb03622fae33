// Predictions held against measured times, as tables, text and JSON.
#pragma once

#include <string>

#include "report/table.h"
#include "report/validation.h"

namespace contextile {

// Every row: measured and predicted time and their ratio; the reason of rows without a prediction
// is their note.
[[nodiscard]] Table held_rows_table(const Validation& validation);
// The ratios of each source, method and split.
[[nodiscard]] Table held_methods_table(const Validation& validation);
// Kendall's tau of each experiment.
[[nodiscard]] Table held_experiments_table(const Validation& validation);

// All three: rows under a heading for each source and split, then the summaries, then the rows that
// cannot be predicted.
[[nodiscard]] std::string validation_text(const Validation& validation, bool colour);
// {"rows": […], "methods": […], "experiments": […], "unpredicted": […]}.
[[nodiscard]] Json validation_json(const Validation& validation);

}  // namespace contextile
