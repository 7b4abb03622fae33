// Predictions held against measured times: the ratio of every row, the ratios of every method, and
// the order of the methods in every experiment.
//
//   const MeasuredRows measured = read_measured_rows("rows.csv");
//   const Validation validation = validate_rows(measured);
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contextile/base.h"
#include "contextile/cluster.h"
#include "report/measured_rows.h"
#include "report/time_order.h"

namespace contextile {

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
[[nodiscard]] RatioSummary summary_of(std::vector<double> ratios);
// The factor by which a ratio is off: the ratio or its inverse, whichever is larger.
[[nodiscard]] double factor_of(double ratio);

// Rows of one source, method and split.
struct HeldMethod {
  std::string source;
  std::string method;
  RowSplit split = RowSplit::kJudged;
  RatioSummary ratios;          // of the rows that are predicted
  std::size_t unpredicted = 0;  // rows that are not
};

// Rows of one source and split that differ only in the method, and the order of their times. A
// method that is measured several times takes part with the means of its times.
struct HeldExperiment {
  std::string source;
  RowSplit split = RowSplit::kJudged;
  std::string batch;  // batch_text and shape_text of its rows
  std::string shape;
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
// the cluster, for both directions. Partial results travel in the wire type of the original, as in
// `compare_strategies`. The predicted time is attention's, as `simulate` returns it. Rows that
// differ only in direction or time share a plan.
//
// A row whose strategy does not support it, or that has none, gets the reason instead. Throws
// InvalidArgument (file, line) on options that the strategy does not have and on a mask that does
// not fit the documents, before anything is planned. Throws CheckFailed when a plan does not
// verify.
[[nodiscard]] Validation validate_rows(const MeasuredRows& measured,
                                       const ValidationOptions& options = {});

// Texts of a row's setting: "dgx-h100:2x8, 128K causal, forward", "64/8 heads of 128, bf16", and
// both together.
[[nodiscard]] std::string batch_text(const MeasuredRow& row);
[[nodiscard]] std::string shape_text(const MeasuredRow& row);
[[nodiscard]] std::string setting_text(const MeasuredRow& row);

}  // namespace contextile
