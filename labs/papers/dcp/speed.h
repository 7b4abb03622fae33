// The common parts of DCP's figures of speed (Figs. 13 and 14).
#pragma once

#include <array>
#include <span>
#include <string>

#include "contextile/workload.h"
#include "labs/papers/findings.h"
#include "labs/papers/setting.h"

namespace contextile {

// The factors by which the datasets' lengths are multiplied.
inline constexpr std::array<double, 4> kDcpScales = {0.5, 1, 2, 4};

// For PaperResult::differences.
inline constexpr const char* kSpreadIs =
    "Gains are of mean times. In parentheses: the gains of single batches, without the tenth of "
    "them at either end.";

[[nodiscard]] PaperSetting dcp_speed_setting(const TableOverrides& overrides);
// "2.26x to 2.87x"; one number if both read the same.
[[nodiscard]] std::string dcp_gain_text(const Extent& gains);
[[nodiscard]] double mean_sequences(std::span<const Workload> batches);

}  // namespace contextile
