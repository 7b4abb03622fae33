// FCP and its baselines on one setting: rows of MFUs with their spread over batches.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "contextile/planner.h"
#include "labs/papers/gpu_share.h"
#include "labs/papers/progress.h"
#include "report/table.h"

namespace contextile {

// `first`, then the columns that add_methods fills behind its labels: of both directions, or of
// forward alone.
[[nodiscard]] std::vector<Column> method_columns(std::vector<Column> first);
[[nodiscard]] std::vector<Column> forward_method_columns(std::vector<Column> first);

// FCP compared with its baselines on the same batches.
struct ComparedMethods {
  std::optional<GpuShares> fcp;
  double gain = 0;           // of FCP over the fastest baseline, geometric mean over batches
  double least_gain = 0;     // of one batch over that baseline
  double most_gain = 0;      // likewise
  std::string fastest = {};  // that baseline; empty: no baseline applies

  [[nodiscard]] std::string text() const;  // "1.08x magi (1.01 to 1.20)"
};
// Adds a row for each method. The first is FCP; other settings of it are no baselines.
ComparedMethods add_methods(std::span<const StrategyChoice> choices, const PlanInput& input,
                            std::span<const Workload> batches, const std::vector<Cell>& labels,
                            Progress& progress, Table& table);

}  // namespace contextile
