// Predictions held against times that others measured: rows of a CSV file, and of each the
// predicted time, the ratios of every method, and the order of the methods in every experiment. A
// row is the attention of one layer, or a whole training step. docs/predict.md describes the file.
//
//   const MeasuredRows measured = read_measured_rows("rows.csv");
//   const Validation validation = validate_rows(measured);
//   for (const HeldMethod& method : validation.methods) {
//     std::printf("%s: %.3f\n", method.method.c_str(), method.ratios.median);
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/advanced/model.h"
#include "contextile/advanced/training.h"
#include "contextile/base.h"
#include "contextile/cluster.h"
#include "contextile/plan_options.h"
#include "contextile/workload.h"

namespace contextile {

inline constexpr std::size_t kMaxMeasuredRows = 20'000;

// The use of a row: constants of a cluster may be fitted to it, or predictions are judged by it.
enum class RowSplit : std::uint8_t { kFitted, kJudged };
[[nodiscard]] std::string_view to_string(RowSplit split);  // "fitted", "judged"

// The directions of attention whose times a row adds up, or a whole training step.
enum class RowDirection : std::uint8_t { kForward, kBackward, kBoth, kStep };
[[nodiscard]] std::string_view to_string(RowDirection direction);  // …, "forward+backward", "step"

// The two kinds of rows: the attention of one layer, and a training step of a model. Their ratios
// are never mixed.
enum class RowKind : std::uint8_t { kAttention, kStep };
[[nodiscard]] std::string_view to_string(RowKind kind);  // "attention", "step"

// `count` documents of `tokens` tokens each.
struct DocumentRun {
  std::int64_t count = 1;
  std::int64_t tokens = 0;
  friend bool operator==(const DocumentRun&, const DocumentRun&) = default;
};
using DocumentBatch = std::vector<DocumentRun>;

// The training step that a row of direction `step` measured. `contextile iterate` has an option for
// each of its columns.
struct MeasuredStep {
  std::string model_text;  // as the row has it
  ModelSpec model;
  ParallelSizes sizes;             // CP has the devices that TP, DP and PP leave
  std::int32_t micro_batches = 1;  // of every replica
  IterationOptions options;
};

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
  // The row is the mean of their times. A step takes DP x `micro_batches` of them, in their order.
  std::vector<DocumentBatch> batches;
  std::string mask_text;
  MaskUse mask;
  AttentionShape shape;  // of a step: that of one tensor-parallel rank
  RowDirection direction = RowDirection::kForward;
  std::optional<MeasuredStep> step;  // of rows of direction `step` alone
  std::optional<Dtype> wire;         // of partial results; unset: that of the original
  double ms = 0;
  std::string experiment;  // tells experiments apart that no other column does
  std::string note;

  [[nodiscard]] RowKind kind() const { return step ? RowKind::kStep : RowKind::kAttention; }
};

struct MeasuredRows {
  std::string name;  // of the source, for messages
  std::vector<MeasuredRow> rows;
};

// Reads a file of rows, or standard input ("-"). Cluster files that rows name are relative to the
// folder of the file. Throws IoError when a file cannot be read, and InvalidArgument (file, line,
// column, expected, found) on the first malformed row. O(bytes).
[[nodiscard]] MeasuredRows read_measured_rows(const std::string& path);
// Parses the text of such a file. `where` names it in messages, and `folder` is its folder; empty:
// the current one.
[[nodiscard]] MeasuredRows parse_measured_rows(std::string_view text, std::string where,
                                               std::string_view folder = "");

// Measured times of an experiment that differ by less say nothing about an order.
inline constexpr double kMeasuredTie = 0.02;

// A row with its prediction.
struct HeldRow {
  MeasuredRow row;
  std::optional<double> predicted_ms;  // none: the row cannot be predicted
  std::string reason;                  // why it cannot

  // Predicted over measured time; the row must be predicted.
  [[nodiscard]] double ratio() const { return *predicted_ms / row.ms; }
};

// Ratios of predicted over measured time.
struct RatioSummary {
  std::size_t rows = 0;
  double median = 1;    // of an even number, the mean of the middle two
  double furthest = 1;  // the one furthest from 1, by factor
};

// Rows of one source, method, kind and split.
struct HeldMethod {
  std::string source;
  std::string method;
  RowKind kind = RowKind::kAttention;
  RowSplit split = RowSplit::kJudged;
  RatioSummary ratios;          // of the rows that are predicted
  std::size_t unpredicted = 0;  // rows that are not
};

// Kendall's tau over the pairs whose measured times are apart. A pair that is predicted equal is
// neither in order nor turned.
struct KendallOrder {
  std::int64_t pairs = 0;     // whose measured times are apart
  std::int64_t in_order = 0;  // predicted in the measured order
  std::int64_t turned = 0;    // predicted in the opposite order

  // (in_order - turned) / pairs: 1 if all pairs are in order, -1 if all are turned. None without
  // pairs.
  [[nodiscard]] std::optional<double> tau() const;
};

// Rows of one source and split that differ only in the method, and the order of their times. A
// method that is measured several times takes part with the means of its times.
struct HeldExperiment {
  std::string source;
  RowSplit split = RowSplit::kJudged;
  std::string batch;  // of its rows: "dgx-h100:2x8, 128K causal, forward"
  std::string shape;  // "64/8 heads of 128, bf16"; of steps "gpt-8b, TP 4, CP 16, DP 1, PP 1"
  std::size_t methods = 0;
  KendallOrder order;
};

// All of them: rows in their order, the rest in the order of the first row, fitted before judged.
// Rows of different splits are never mixed.
struct Validation {
  std::string name;  // of the rows' file
  std::vector<HeldRow> rows;
  std::vector<HeldMethod> methods;
  std::vector<HeldExperiment> experiments;  // of at least two predicted methods
};

struct ValidationOptions {
  // Machine to predict on instead of each row's own. Rows with another number of nodes or devices
  // are not predicted.
  std::optional<Cluster> cluster = std::nullopt;
  // Receives the setting that is predicted next, and how many plans of all are done.
  ProgressHook progress = {};
};

// Plans and simulates every row. The plan is the one that the row's strategy makes for the batch on
// the cluster, for both directions. Partial results travel in the row's wire type, or in that of
// the original, as in `compare_strategies`. The predicted time is attention's, as `simulate`
// returns it. Rows that differ only in direction or time share a plan. The predicted time of a
// step is that of `StepPlanner`, with the row's strategy and 1F1B.
//
// A row whose strategy does not support it, or that has none, gets the reason instead. Throws
// InvalidArgument (file, line) on options that the strategy does not have and on a mask that does
// not fit the documents, before anything is planned. Throws CheckFailed when a plan does not
// verify.
[[nodiscard]] Validation validate_rows(const MeasuredRows& measured,
                                       const ValidationOptions& options = {});

// Returns what `contextile validate` prints: rows under a heading for each source and split, then
// the summaries, then the rows that cannot be predicted.
[[nodiscard]] std::string validation_text(const Validation& validation);

}  // namespace contextile
