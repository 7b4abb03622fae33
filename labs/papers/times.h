// Simulated times of strategies over batches, and the tables that compare a method with its
// baselines.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/planner.h"
#include "labs/papers/findings.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "report/table.h"

namespace contextile {

// For PaperResult::differences.
inline constexpr const char* kTimesAreSimulated =
    "Times are simulated on the preset's constants (contextile info, docs/predict.md), not "
    "measured on GPUs.";

enum class Mean : std::uint8_t { kGeometric, kArithmetic };

// Times of verified plans of one strategy: means over batches.
struct Predicted {
  double forward_s = 0;
  double backward_s = 0;
  double total_s = kInfinity;      // infinity: the method does not apply
  std::string skipped = {};        // why it does not
  std::vector<double> totals_s{};  // of every batch
};
[[nodiscard]] Predicted predict_times(const StrategyChoice& choice, const PlanInput& input,
                                      std::span<const Workload> batches,
                                      Mean mean = Mean::kGeometric);

// `first`, then the columns that add_times fills behind its labels and the strategy.
[[nodiscard]] std::vector<Column> time_columns(std::vector<Column> first);
// One method of a table. If there are several ways to set it up, the fastest counts.
struct TimedMethod {
  std::vector<StrategyChoice> ways;  // at least one
  std::string engine = "";           // what runs it; empty, or the cluster has one: the cluster's
  std::vector<Workload> own_batches{};  // if it pads them; empty: those of all methods
};
// A baseline's time over the method's.
struct Gain {
  double mean = 0;  // of mean times
  Spread spread{};  // over batches
};
// Adds a method and its baselines on one setting: a row each, with `gain` of the first one over it.
// Returns the gain over the fastest baseline; none if the method or every baseline does not apply.
std::optional<Gain> add_times(std::span<const TimedMethod> methods, const PlanInput& input,
                              std::span<const Workload> batches, const std::vector<Cell>& labels,
                              Progress& progress, Table& table, Mean mean = Mean::kGeometric);
// The same, each method set up in one way.
std::optional<Gain> add_times(std::span<const StrategyChoice> choices, const PlanInput& input,
                              std::span<const Workload> batches, const std::vector<Cell>& labels,
                              Progress& progress, Table& table);

// For Table::add_row: the note of a method that cannot plan a batch.
[[nodiscard]] std::string skipped_note(const StrategyChoice& choice, std::string_view reason);

// The result with two differences: times are simulated, lengths are sampled.
[[nodiscard]] PaperResult timed_result(const PaperSetting& setting, Table table);

}  // namespace contextile
