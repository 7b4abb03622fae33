// Times of plans that others measured, as rows of a CSV file. docs/predict.md describes its
// columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/plan_options.h"
#include "contextile/workload.h"
#include "report/document_batches.h"

namespace contextile {

inline constexpr std::size_t kMaxMeasuredRows = 20'000;

// The use of a row: constants of a cluster may be fitted to it, or predictions are judged by it.
enum class RowSplit : std::uint8_t { kFitted, kJudged };
[[nodiscard]] std::string_view to_string(RowSplit split);  // "fitted", "judged"

// The directions whose times a row adds up.
enum class RowDirection : std::uint8_t { kForward, kBackward, kBoth };
[[nodiscard]] std::string_view to_string(RowDirection direction);  // …, "forward+backward"

// One measured time.
struct MeasuredRow {
  std::size_t line = 0;  // of the file, from 1
  std::string source;
  RowSplit split = RowSplit::kJudged;
  std::string cluster_text;  // as the row has it
  std::shared_ptr<const Cluster> cluster;
  std::string method;       // as the source calls it
  std::string kernel_text;  // its attention kernel, see gpu_kernels(); empty: the cluster's
  std::string engine_text;  // what it runs on, see engine_presets(); empty: the cluster's
  std::string strategy_text;
  std::optional<StrategyChoice> strategy;  // none: no strategy here does the same
  std::string lengths_text;
  std::vector<DocumentBatch> batches;  // the row is the mean of their times
  std::string mask_text;
  MaskUse mask;
  AttentionShape shape;
  RowDirection direction = RowDirection::kForward;
  double ms = 0;
  std::string experiment;  // tells experiments apart that no other column does
  std::string note;
};

struct MeasuredRows {
  std::string name;  // of the source, for messages
  std::vector<MeasuredRow> rows;
};

// Reads a file of rows, or standard input. Cluster files that rows name are relative to the folder
// of the file. Throws IoError when a file cannot be read, and InvalidArgument (file, line, column,
// expected, found) on the first malformed row. O(bytes).
[[nodiscard]] MeasuredRows read_measured_rows(const std::string& path);
// Parses the text of such a file. `where` names it in messages, and `folder` is its folder; empty:
// the current one.
[[nodiscard]] MeasuredRows parse_measured_rows(std::string_view text, std::string where,
                                               std::string_view folder = "");

}  // namespace contextile
