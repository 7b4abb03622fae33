#include "report/comparison_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/quote.h"
#include "contextile/advanced/oracle.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "report/fidelity.h"
#include "report/json.h"
#include "report/plan_tables.h"
#include "report/run_tables.h"

namespace contextile {
namespace {

const StrategyRuns& runs_of(std::span<const StrategyRuns> runs, std::size_t strategy) {
  static const StrategyRuns kNone;
  return runs.empty() ? kNone : runs[strategy];
}

template <typename Value>
double mean(const std::vector<PlannedBatch>& batches, Value value) {
  double sum = 0;
  for (const PlannedBatch& batch : batches) sum += static_cast<double>(value(batch));
  return sum / static_cast<double>(batches.size());
}

// A direction's quantity, averaged; empty when no batch has the direction.
template <typename Value>
Cell mean_of(const std::vector<PlannedBatch>& batches, Direction direction, Value value) {
  const auto stats =
      [direction](const PlannedBatch& batch) -> const std::optional<DirectionStats>& {
    return direction == Direction::kForward ? batch.statistics.forward : batch.statistics.backward;
  };
  if (!stats(batches.front())) return {};
  return mean(batches, [&](const PlannedBatch& batch) { return value(*stats(batch)); });
}

bool verified(const ComparedStrategy& comparison) {
  return std::all_of(comparison.batches.begin(), comparison.batches.end(),
                     [](const PlannedBatch& batch) { return batch.verified.ok(); });
}

// The row of a strategy without numbers, in a table with columns "skipped" and "failed".
bool add_note(Table& table, const ComparedStrategy& comparison,
              const std::vector<Column>& columns) {
  if (comparison.skipped.empty() && comparison.failed.empty()) return false;
  std::vector<Cell> cells(columns.size());
  cells.front() = choice_text(comparison.choice);
  const bool skip = !comparison.skipped.empty();
  const std::string& reason = skip ? comparison.skipped : comparison.failed;
  const auto column = std::ranges::find(columns, skip ? "skipped" : "failed",
                                        [](const Column& c) { return c.key; });
  cells[static_cast<std::size_t>(column - columns.begin())] = reason;
  table.add_row(std::move(cells), fmt::format("{}: {}", skip ? "skipped" : "FAILED", reason));
  return true;
}

// Largest error of some arrays over all masks and batches, relative to nothing but itself.
struct WorstError {
  double error = 0;
  double single_device_error = 0;
  double bound = 0;
};

WorstError worst_error(const std::vector<RunReport>& runs, bool gradients) {
  WorstError worst;
  for (const RunReport& run : runs) {
    for (const MaskRun& mask : run.masks) {
      for (const RunError& error : mask.errors) {
        const bool is_gradient = error.array != "out" && error.array != "lse";
        if (is_gradient != gradients || std::isnan(worst.error) || error.error <= worst.error) {
          continue;
        }
        worst = {error.error, error.single_device_error, error.bound};
      }
    }
  }
  return worst;
}

}  // namespace

std::string schedules_text(const PlanInput& input, std::span<const ComparedStrategy> comparisons) {
  const bool has_home = std::ranges::any_of(
      input.batches, [](const Workload& workload) { return !workload.home.empty(); });
  std::vector<std::string> names;
  for (const ComparedStrategy& comparison : comparisons) {
    const bool is_named = has_home ? find_strategy(comparison.choice.name).has_schedule()
                                   : !comparison.schedules.empty();
    if (is_named) names.push_back(choice_text(comparison.choice));
  }
  if (!input.schedules || names.empty()) return "";
  const std::string_view said =
      has_home ? "one plan, as tokens have homes"
               : "peak of one micro-batch at a time, as plan --schedule has them";
  return wrap(fmt::format("{}: {}", fmt::join(names, ", "), said), kTextColumns) + '\n';
}

std::string comparison_heading(const PlanInput& input) {
  std::int64_t tokens = 0;
  std::int64_t sequences = 0;
  for (const Workload& workload : input.batches) {
    tokens += workload.num_tokens();
    sequences += static_cast<std::int64_t>(workload.sequences.size());
  }
  const auto batches = static_cast<std::int64_t>(input.batches.size());
  std::string text = fmt::format("{}, {}, {}; {}: {} x {} devices\n", count(batches, "batch"),
                                 count(tokens, "token"), count(sequences, "sequence"),
                                 printable(input.cluster.name), input.cluster.nodes,
                                 input.cluster.devices_per_node);
  text += "one layer of every mask; MB = 1e6 bytes";
  if (batches > 1) text += "; means, peak: the largest";
  text += "\n\n";
  return text;
}

std::int64_t peak_memory_bytes(const ComparedStrategy& comparison) {
  std::int64_t peak = 0;
  for (const ComparedSchedule& schedule : comparison.schedules) {
    peak = std::max(peak, schedule.memory_bytes);
  }
  if (!comparison.schedules.empty()) return peak;
  for (const PlannedBatch& batch : comparison.batches) {
    for (const auto& direction : {batch.statistics.forward, batch.statistics.backward}) {
      if (direction) peak = std::max(peak, direction->peak_memory_bytes);
    }
  }
  return peak;
}

bool compared_ok(const ComparedStrategy& compared, const StrategyRuns& runs) {
  return compared.ok() && std::ranges::all_of(runs.reports, &RunReport::ok);
}

Table planning_table(std::span<const ComparedStrategy> comparisons) {
  const std::vector<Column> columns = {
      {"strategy", "strategy"},
      {"forward_inter_bytes", "fwd MB\ninter", Format::kMegabytes},
      {"forward_intra_bytes", "fwd MB\nintra", Format::kMegabytes},
      {"backward_inter_bytes", "bwd MB\ninter", Format::kMegabytes},
      {"backward_intra_bytes", "bwd MB\nintra", Format::kMegabytes},
      {"compute_imbalance", "FLOPs\nimbal", Format::kPercent},
      {"token_imbalance", "tokens\nimbal", Format::kPercent},
      {"peak_memory_bytes", "peak\nMB", Format::kMegabytes},
      {"planning_s", ""},
      {"verified", "ok", Format::kVerdict},
      {"skipped", ""},
      {"failed", ""},
      {"predicted_forward_s", ""},
      {"predicted_backward_s", ""},
      {"predicted_total_s", ""},
      {"predicted_of_bound", ""},
      {"predicted_exposed", ""},
      {"predicted_mfu", ""},
      {"predicted_layer_s", ""},
      {"predicted_uneven_s", ""}};
  Table table(columns);
  const auto inter = [](const DirectionStats& s) { return s.inter_bytes; };
  const auto intra = [](const DirectionStats& s) { return s.intra_bytes; };
  const auto imbalance = [](const DirectionStats& s) { return s.compute_imbalance; };
  for (const ComparedStrategy& comparison : comparisons) {
    if (add_note(table, comparison, columns)) continue;
    const std::vector<PlannedBatch>& batches = comparison.batches;
    const PredictedTimes predicted = predicted_times(comparison);
    table.add_row(
        {choice_text(comparison.choice),
         mean_of(batches, Direction::kForward, inter),
         mean_of(batches, Direction::kForward, intra),
         mean_of(batches, Direction::kBackward, inter),
         mean_of(batches, Direction::kBackward, intra),
         mean_of(batches, Direction::kForward, imbalance),
         mean(batches, [](const PlannedBatch& b) { return b.statistics.token_imbalance; }),
         peak_memory_bytes(comparison),
         mean_planning_s(comparison),
         verified(comparison),
         {},
         {},
         predicted.forward_s,
         predicted.backward_s,
         predicted.total_s,
         predicted.of_bound,
         predicted.exposed,
         predicted.mfu,
         predicted.layer_s,
         predicted.uneven_s});
  }
  return table;
}

Table execution_table(std::span<const ComparedStrategy> comparisons,
                      std::span<const StrategyRuns> runs) {
  const std::vector<Column> columns = {
      {"strategy", "strategy"},
      {"output_error", "output\nerror", Format::kScientific},
      {"output_single_device_error", "one\ndevice", Format::kScientific},
      {"gradient_error", "gradient\nerror", Format::kScientific},
      {"gradient_single_device_error", "one\ndevice", Format::kScientific},
      {"moved_bytes", "moved\nMB", Format::kMegabytes},
      {"predicted_bytes", "predicted\nMB", Format::kMegabytes},
      {"seconds", ""},
      {"run_ok", "ok", Format::kVerdict},
      {"skipped", ""},
      {"failed", ""}};
  Table table(columns);
  for (std::size_t i = 0; i < comparisons.size(); ++i) {
    const ComparedStrategy& comparison = comparisons[i];
    if (add_note(table, comparison, columns)) continue;
    std::int64_t moved_bytes = 0;
    std::int64_t predicted_bytes = 0;
    double seconds = 0;
    for (const RunReport& run : runs_of(runs, i).reports) {
      for (const MaskRun& mask : run.masks) {
        moved_bytes += mask.sent_bytes_forward + mask.sent_bytes_backward;
        predicted_bytes += mask.predicted_bytes_forward + mask.predicted_bytes_backward;
        seconds += mask.forward_s + mask.backward_s;
      }
    }
    const WorstError output = worst_error(runs_of(runs, i).reports, /*gradients=*/false);
    const WorstError gradient = worst_error(runs_of(runs, i).reports, /*gradients=*/true);
    table.add_row({choice_text(comparison.choice), output.error, output.single_device_error,
                   gradient.error, gradient.single_device_error, moved_bytes, predicted_bytes,
                   seconds, compared_ok(comparison, runs_of(runs, i))});
  }
  return table;
}

std::string detail_text(const PlanInput& input, std::span<const ComparedStrategy> comparisons,
                        bool colour) {
  std::string text = planning_table(comparisons).text(colour) + schedules_text(input, comparisons);
  const bool predicted =
      std::any_of(comparisons.begin(), comparisons.end(),
                  [](const ComparedStrategy& c) { return !c.simulations.empty(); });
  if (predicted) {
    text += fmt::format(
                "\npredicted on {}\n"
                "x bound: over what no plan undercuts; exposed: waiting for transfers, mean over\n"
                "devices; plan: arranging and building\n\n",
                printable(input.cluster.name)) +
            prediction_table(comparisons).text(colour) +
            "\na layer: attention, and linear layers on the device that owns most tokens;\n"
            "uneven: the part that its tokens above the mean take\n\n" +
            layer_table(comparisons).text(colour);
  }
  return text;
}

std::string execution_text(std::span<const ComparedStrategy> comparisons,
                           std::span<const StrategyRuns> runs, std::uint64_t run_seed,
                           bool colour) {
  std::string text;
  if (!runs.empty()) {
    text +=
        fmt::format(
            "\nexecuted in process, inputs of seed {}: largest error against the fp64 oracle\n\n",
            run_seed) +
        execution_table(comparisons, runs).text(colour);
  }
  if (std::ranges::any_of(runs, [](const StrategyRuns& r) { return !r.predicted.empty(); })) {
    text += "\ntime, predicted for this machine and measured here\n\n" +
            fidelity_table(comparisons, runs).text(colour) + agreement_text(agreement(runs));
  }
  return text;
}

std::string comparison_text(const PlanInput& input, std::span<const ComparedStrategy> comparisons,
                            std::span<const StrategyRuns> runs, std::uint64_t run_seed,
                            bool colour) {
  return comparison_heading(input) + detail_text(input, comparisons, colour) +
         execution_text(comparisons, runs, run_seed, colour);
}

Json comparisons_json(std::span<const ComparedStrategy> comparisons,
                      std::span<const StrategyRuns> runs) {
  Json rows = planning_table(comparisons).json();
  for (std::size_t i = 0; i < comparisons.size(); ++i) {
    const ComparedStrategy& comparison = comparisons[i];
    rows[i]["options"] = comparison.choice.options;
    for (std::size_t b = 0; b < comparison.batches.size(); ++b) {
      const PlannedBatch& batch = comparison.batches[b];
      Json entry = plan_json(*batch.plan);
      entry["arrange_s"] = batch.arrange_s;
      entry["build_s"] = batch.build_s;
      entry["verify_s"] = batch.verify_s;
      entry["verify"] = verify_json(batch.verified);
      entry["statistics"] = statistics_json(batch.statistics);
      if (b < comparison.schedules.size()) {
        const ComparedSchedule& schedule = comparison.schedules[b];
        entry["schedule"] = {{"micro_batches", schedule.micro_batches},
                             {"most_tokens", schedule.most_tokens},
                             {"memory_bytes", schedule.memory_bytes}};
      }
      if (b < comparison.simulations.size()) {
        entry["predicted"] = prediction_json(comparison.simulations[b], comparison.bounds[b]);
      }
      if (b < runs_of(runs, i).reports.size()) {
        entry["run"] = run_json(runs_of(runs, i).reports[b]);
      }
      rows[i]["batches"].push_back(std::move(entry));
    }
  }
  return rows;
}

std::vector<std::string> failures(std::span<const ComparedStrategy> comparisons,
                                  std::span<const StrategyRuns> runs) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < comparisons.size(); ++i) {
    const ComparedStrategy& comparison = comparisons[i];
    const std::string name = choice_text(comparison.choice);
    if (!comparison.failed.empty()) lines.push_back(fmt::format("{}: {}", name, comparison.failed));
    for (const PlannedBatch& batch : comparison.batches) {
      for (const std::string& violation : batch.verified.violations) {
        lines.push_back(fmt::format("{}: {}", name, violation));
      }
    }
    for (const RunReport& run : runs_of(runs, i).reports) {
      for (const std::string& failure : run_failures(run)) {
        lines.push_back(fmt::format("{}: {}", name, failure));
      }
    }
  }
  return lines;
}

}  // namespace contextile
