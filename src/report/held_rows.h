// Ratios and texts of measured rows and their predictions, for tables.
#pragma once

#include <string>
#include <vector>

#include "contextile/advanced/validation.h"

namespace contextile {

[[nodiscard]] RatioSummary summary_of(std::vector<double> ratios);
// The factor by which a ratio is off: the ratio or its inverse, whichever is larger.
[[nodiscard]] double factor_of(double ratio);

// Texts of a row's setting: "dgx-h100:2x8, 128K causal, forward", "64/8 heads of 128, bf16" (of a
// step its step_text), and both together.
[[nodiscard]] std::string batch_text(const MeasuredRow& row);
[[nodiscard]] std::string shape_text(const MeasuredRow& row);
[[nodiscard]] std::string setting_text(const MeasuredRow& row);

}  // namespace contextile
