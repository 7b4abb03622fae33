// Whole training steps of DistCA compared with WLB-LLM at its best: Figs. 9 and 10.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "labs/papers/distca/setting.h"
#include "labs/papers/distca/trends.h"
#include "labs/papers/paper_table.h"

namespace contextile {

// The paper's statement about the gain over WLB.
struct DistcaClaim {
  std::string_view model;  // empty: both
  std::string_view dataset;
  double least;  // 0: the paper names only the most
  double most;
};

// The paper's statements about the settings together.
using Trends = std::vector<Finding> (*)(std::span<const DistcaOutcome>);

// One figure: the points on two datasets, each method with the fastest of the `pipelines` (numbers
// of stages) that fits.
[[nodiscard]] PaperResult distca_whole_steps(const TableOverrides& overrides, std::string_view name,
                                             std::span<const DistcaPoint> points,
                                             std::span<const std::int32_t> pipelines,
                                             std::span<const DistcaClaim> claims, Trends trends);

}  // namespace contextile
