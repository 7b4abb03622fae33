#include "report/comparison_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "contextile/planner.h"
#include "report/fidelity.h"

namespace contextile {
namespace {

// Indices of the entries that have a time, the shortest first.
template <typename Seconds>
std::vector<std::size_t> by_time(std::size_t count, const Seconds& seconds) {
  std::vector<std::pair<double, std::size_t>> timed;
  for (std::size_t i = 0; i < count; ++i) {
    const double time = seconds(i);
    if (!std::isnan(time)) timed.emplace_back(time, i);
  }
  std::ranges::sort(timed);
  std::vector<std::size_t> order;
  order.reserve(timed.size());
  for (const auto& [time, i] : timed) order.push_back(i);
  return order;
}

double predicted_s(const ComparedStrategy& comparison) {
  const PredictedTimes times = predicted_times(comparison);
  const double* seconds = std::get_if<double>(&times.total_s);
  return seconds == nullptr ? std::nan("") : *seconds;
}

std::vector<std::size_t> by_predicted_time(std::span<const ComparedStrategy> comparisons) {
  return by_time(comparisons.size(), [&](std::size_t i) { return predicted_s(comparisons[i]); });
}

double layer_s(const ComparedStrategy& comparison) {
  const PredictedTimes times = predicted_times(comparison);
  const double* seconds = std::get_if<double>(&times.layer_s);
  return seconds == nullptr ? std::nan("") : *seconds;
}

std::vector<std::size_t> by_layer_time(std::span<const ComparedStrategy> comparisons) {
  return by_time(comparisons.size(), [&](std::size_t i) { return layer_s(comparisons[i]); });
}

// Sums of both directions, means over batches.
struct Bytes {
  double inter = 0;
  double intra = 0;
  std::int64_t peak_memory = 0;
  double imbalance = 0;  // of forward's FLOPs
};

Bytes bytes_of(const ComparedStrategy& comparison) {
  Bytes bytes;
  const auto batches = static_cast<double>(comparison.batches.size());
  for (const PlannedBatch& batch : comparison.batches) {
    for (const auto& direction : {batch.statistics.forward, batch.statistics.backward}) {
      if (!direction) continue;
      bytes.inter += static_cast<double>(direction->inter_bytes) / batches;
      bytes.intra += static_cast<double>(direction->intra_bytes) / batches;
      bytes.peak_memory = std::max(bytes.peak_memory, direction->peak_memory_bytes);
    }
    if (batch.statistics.forward) {
      bytes.imbalance += batch.statistics.forward->compute_imbalance / batches;
    }
  }
  return bytes;
}

// Bytes and times of a strategy's runs, sums over batches and masks, and its largest errors.
struct Executed {
  std::int64_t moved_bytes = 0;
  std::int64_t planned_bytes = 0;
  double seconds = 0;
  double output_error = 0;
  double gradient_error = 0;
  double of_bound = 0;  // the largest error as a share of its bound
};

// The larger one; NaN is larger than everything.
double worse(double a, double b) { return std::isnan(a) || a > b ? a : b; }

Executed executed_of(const StrategyRuns& runs) {
  Executed executed;
  for (const RunReport& run : runs.reports) {
    for (const MaskRun& mask : run.masks) {
      executed.moved_bytes += mask.sent_bytes_forward + mask.sent_bytes_backward;
      executed.planned_bytes += mask.predicted_bytes_forward + mask.predicted_bytes_backward;
      executed.seconds += mask.forward_s + mask.backward_s;
      for (const RunError& error : mask.errors) {
        const bool output = error.array == "out" || error.array == "lse";
        double& largest = output ? executed.output_error : executed.gradient_error;
        largest = worse(error.error, largest);
        executed.of_bound = worse(error.error / error.bound, executed.of_bound);
      }
    }
  }
  return executed;
}

std::string listed(const std::vector<std::string>& names) {
  return fmt::format("{} {}", fmt::join(names, ", "), names.size() == 1 ? "does" : "do");
}

}  // namespace

Table fastest_table(std::span<const ComparedStrategy> comparisons, std::size_t rows) {
  Table table({{"strategy", "strategy"},
               {"inter_bytes", "between\nnodes MB", Format::kMegabytes},
               {"intra_bytes", "inside\nMB", Format::kMegabytes},
               {"compute_imbalance", "FLOPs\nimbal", Format::kPercent},
               {"peak_memory_bytes", "peak\nMB", Format::kMegabytes},
               {"predicted_total_s", "time\nms", Format::kMilliseconds},
               {"predicted_of_bound", "x\nbound"},
               {"predicted_mfu", "\nMFU", Format::kPercent}});
  for (const std::size_t i : by_predicted_time(comparisons)) {
    if (table.num_rows() == rows) break;
    const Bytes bytes = bytes_of(comparisons[i]);
    const PredictedTimes times = predicted_times(comparisons[i]);
    table.add_row({choice_text(comparisons[i].choice), bytes.inter, bytes.intra, bytes.imbalance,
                   bytes.peak_memory, times.total_s, times.of_bound, times.mfu});
  }
  return table;
}

std::string others_text(std::span<const ComparedStrategy> comparisons, std::size_t rows) {
  const std::vector<std::size_t> order = by_predicted_time(comparisons);
  std::string text;
  if (order.size() > rows) {
    const ComparedStrategy& slowest = comparisons[order.back()];
    text = fmt::format("{} more take {} to {} ms ({})", order.size() - rows,
                       format_cell(predicted_s(comparisons[order[rows]]), Format::kMilliseconds),
                       format_cell(predicted_s(slowest), Format::kMilliseconds),
                       choice_text(slowest.choice));
  }
  std::vector<std::string> skipped;
  std::vector<std::string> failed;
  for (const ComparedStrategy& comparison : comparisons) {
    if (!comparison.skipped.empty()) skipped.push_back(choice_text(comparison.choice));
    if (!comparison.ok()) failed.push_back(choice_text(comparison.choice));
  }
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  if (!skipped.empty()) add(listed(skipped) + " not apply");
  if (!failed.empty()) add(fmt::format("FAILED: {}", fmt::join(failed, ", ")));
  return text.empty() ? "" : wrap(text, kTextColumns) + '\n';
}

Table fastest_run_table(std::span<const ComparedStrategy> comparisons,
                        std::span<const StrategyRuns> runs, std::size_t rows) {
  Table table({{"strategy", "strategy"},
               {"measured_s", "time\nms", Format::kMilliseconds},
               {"moved_bytes", "moved\nMB", Format::kMegabytes},
               {"planned_bytes", "planned\nMB", Format::kMegabytes},
               {"output_error", "output\nerror", Format::kScientific},
               {"gradient_error", "gradient\nerror", Format::kScientific},
               {"error_of_bound", "of its\nbound", Format::kPercent},
               {"run_ok", "\nok", Format::kVerdict}});
  const auto seconds = [&](std::size_t i) {
    return runs[i].reports.empty() ? std::nan("") : executed_of(runs[i]).seconds;
  };
  for (const std::size_t i : by_time(runs.size(), seconds)) {
    if (table.num_rows() == rows) break;
    const Executed executed = executed_of(runs[i]);
    table.add_row({choice_text(comparisons[i].choice), executed.seconds, executed.moved_bytes,
                   executed.planned_bytes, executed.output_error, executed.gradient_error,
                   executed.of_bound, compared_ok(comparisons[i], runs[i])});
  }
  return table;
}

std::string runs_text(std::span<const ComparedStrategy> comparisons,
                      std::span<const StrategyRuns> runs) {
  std::int64_t executed = 0;
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].reports.empty() && comparisons[i].ok()) continue;
    ++executed;
    if (!compared_ok(comparisons[i], runs[i])) ++wrong;
  }
  if (wrong > 0) return fmt::format("NOT EXACT: {} of {} strategies\n", wrong, executed);
  return fmt::format("exact: {} strategies, every error within its bound, every byte as planned\n",
                     executed);
}

Cell speed_of_now(const ComparedStrategy& comparison, const ComparedStrategy& now) {
  const double own_s = layer_s(comparison);
  const double now_s = layer_s(now);
  if (std::isnan(own_s) || std::isnan(now_s) || own_s <= 0) return {};
  return now_s / own_s;
}

Table sorted_table(std::span<const ComparedStrategy> comparisons, std::size_t now) {
  Table table({{"strategy", "strategy"},
               {"predicted_layer_s", "layer\nms", Format::kMilliseconds},
               {"predicted_speed_of_now", "x speed\nof now"},
               {"predicted_total_s", "attention\nms", Format::kMilliseconds},
               {"predicted_exposed", "\nwaits", Format::kPercent},
               {"inter_bytes", "between\nnodes MB", Format::kMegabytes},
               {"compute_imbalance", "FLOPs\nimbal", Format::kPercent},
               {"peak_memory_bytes", "peak\nMB", Format::kMegabytes},
               {"verified", "\nok", Format::kVerdict}});
  std::vector<std::size_t> order = by_layer_time(comparisons);
  for (std::size_t i = 0; i < comparisons.size(); ++i) {
    if (std::ranges::find(order, i) == order.end()) order.push_back(i);
  }
  for (const std::size_t i : order) {
    const ComparedStrategy& row = comparisons[i];
    std::vector<Cell> cells(table.columns().size());
    cells.front() = choice_text(row.choice);
    if (!row.skipped.empty() || !row.failed.empty()) {
      table.add_row(std::move(cells),
                    row.skipped.empty() ? "FAILED: " + row.failed : "skipped: " + row.skipped);
      continue;
    }
    const Bytes bytes = bytes_of(row);
    const PredictedTimes times = predicted_times(row);
    table.add_row({cells.front(), times.layer_s, speed_of_now(row, comparisons[now]), times.total_s,
                   times.exposed, bytes.inter, bytes.imbalance, peak_memory_bytes(row), row.ok()});
  }
  return table;
}

std::string now_sentence(std::span<const ComparedStrategy> comparisons, std::size_t now,
                         const Waiting& waiting) {
  const std::string name = choice_text(comparisons[now].choice);
  const std::vector<std::size_t> order = by_layer_time(comparisons);
  if (order.empty()) return "";
  if (std::isnan(layer_s(comparisons[now]))) {
    return fmt::format("{} has no predicted time to compare with.\n", name);
  }
  std::string text =
      order.front() == now
          ? fmt::format("{} is predicted the fastest of these, and {}.", name,
                        waiting_text(waiting))
          : fmt::format(
                "{} is predicted {:.3g} times as fast as {}, which {}.",
                choice_text(comparisons[order.front()].choice),
                std::get<double>(speed_of_now(comparisons[order.front()], comparisons[now])), name,
                waiting_text(waiting));
  return wrap(text, kTextColumns) + '\n';
}

}  // namespace contextile
