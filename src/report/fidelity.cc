#include "report/fidelity.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/planner.h"
#include "report/json.h"

namespace contextile {
namespace {

// Sums over the batches that were executed.
struct Fidelity {
  double predicted_forward_s = 0;
  double predicted_backward_s = 0;
  double measured_forward_s = 0;
  double measured_backward_s = 0;

  [[nodiscard]] double predicted_s() const { return predicted_forward_s + predicted_backward_s; }
  [[nodiscard]] double measured_s() const { return measured_forward_s + measured_backward_s; }
};

Fidelity fidelity_of(const StrategyRuns& runs) {
  Fidelity fidelity;
  for (const Simulation& simulation : runs.predicted) {
    if (simulation.forward) fidelity.predicted_forward_s += 1e-6 * simulation.forward->time_us;
    if (simulation.backward) fidelity.predicted_backward_s += 1e-6 * simulation.backward->time_us;
  }
  for (const RunReport& run : runs.reports) {
    for (const MaskRun& mask : run.masks) {
      fidelity.measured_forward_s += mask.forward_s;
      fidelity.measured_backward_s += mask.backward_s;
    }
  }
  return fidelity;
}

// The mean over batches, in seconds.
double mean_s(const std::vector<double>& us) {
  return 1e-6 * std::accumulate(us.begin(), us.end(), 0.0) / static_cast<double>(us.size());
}

}  // namespace

double mean_planning_s(const ComparedStrategy& comparison) {
  double sum = 0;
  for (const PlannedBatch& batch : comparison.batches) sum += batch.planning_s();
  return sum / static_cast<double>(comparison.batches.size());
}

PredictedTimes predicted_times(const ComparedStrategy& comparison) {
  PredictedTimes predicted;
  if (comparison.simulations.empty()) return predicted;
  const auto batches = static_cast<double>(comparison.simulations.size());
  double forward_us = 0;
  double backward_us = 0;
  double exposed_us = 0;
  double peak_us = 0;  // time of all FLOPs at the peak rate
  for (const Simulation& simulation : comparison.simulations) {
    if (simulation.forward) forward_us += simulation.forward->time_us;
    if (simulation.backward) backward_us += simulation.backward->time_us;
    for (const auto& [direction, simulated] : simulation.directions()) {
      exposed_us += simulated->exposed_us;
      peak_us += simulated->mfu * simulated->time_us;
    }
  }
  double bound_us = 0;
  for (const BatchBound& bound : comparison.bounds) {
    for (const auto* direction : {&bound.forward, &bound.backward}) {
      if (*direction) bound_us += (*direction)->time_us;
    }
  }
  const double total_us = forward_us + backward_us;
  const Simulation& first = comparison.simulations.front();
  if (first.forward) predicted.forward_s = 1e-6 * forward_us / batches;
  if (first.backward) predicted.backward_s = 1e-6 * backward_us / batches;
  predicted.total_s = 1e-6 * total_us / batches;
  if (bound_us > 0) predicted.of_bound = total_us / bound_us;
  predicted.exposed = total_us > 0 ? exposed_us / total_us : 0;
  predicted.mfu = total_us > 0 ? peak_us / total_us : 0;
  predicted.layer_s = mean_s(comparison.layers_us);
  predicted.uneven_s = mean_s(comparison.uneven_us);
  return predicted;
}

Json prediction_json(const Simulation& simulation, const BatchBound& bound) {
  Json document = Json::object();
  if (simulation.forward) document["forward_s"] = 1e-6 * simulation.forward->time_us;
  if (simulation.backward) document["backward_s"] = 1e-6 * simulation.backward->time_us;
  if (bound.forward) {
    document["forward_bound_s"] = 1e-6 * bound.forward->time_us;
    document["forward_bound_binding"] = bound.forward->binding;
  }
  if (bound.backward) {
    document["backward_bound_s"] = 1e-6 * bound.backward->time_us;
    document["backward_bound_binding"] = bound.backward->binding;
  }
  return document;
}

Table prediction_table(std::span<const ComparedStrategy> comparisons) {
  Table table({{"strategy", "strategy"},
               {"predicted_forward_s", "forward\nms", Format::kMilliseconds},
               {"predicted_backward_s", "backward\nms", Format::kMilliseconds},
               {"predicted_total_s", "total\nms", Format::kMilliseconds},
               {"predicted_of_bound", "x\nbound"},
               {"predicted_exposed", "exposed", Format::kPercent},
               {"predicted_mfu", "MFU", Format::kPercent},
               {"planning_s", "plan\nms", Format::kMilliseconds}});
  for (const ComparedStrategy& comparison : comparisons) {
    if (comparison.simulations.empty()) continue;
    const PredictedTimes predicted = predicted_times(comparison);
    table.add_row({choice_text(comparison.choice), predicted.forward_s, predicted.backward_s,
                   predicted.total_s, predicted.of_bound, predicted.exposed, predicted.mfu,
                   mean_planning_s(comparison)});
  }
  return table;
}

Table layer_table(std::span<const ComparedStrategy> comparisons) {
  Table table({{"strategy", "strategy"},
               {"predicted_attention_s", "attention\nms", Format::kMilliseconds},
               {"predicted_linear_s", "linear\nms", Format::kMilliseconds},
               {"predicted_uneven_s", "uneven\nms", Format::kMilliseconds},
               {"predicted_layer_s", "layer\nms", Format::kMilliseconds},
               {"predicted_of_best", "x\nbest"}});
  const auto layer_s = [](const ComparedStrategy& comparison) {
    return mean_s(comparison.layers_us);
  };
  double best_s = std::numeric_limits<double>::infinity();
  for (const ComparedStrategy& comparison : comparisons) {
    if (!comparison.layers_us.empty()) best_s = std::min(best_s, layer_s(comparison));
  }
  for (const ComparedStrategy& comparison : comparisons) {
    if (comparison.layers_us.empty()) continue;
    // A schedule's rounds take other times than its plan in one round, so attention is the rest.
    const double uneven_s = mean_s(comparison.uneven_us);
    const double linear_s = mean_s(comparison.linear_us);
    table.add_row({choice_text(comparison.choice), layer_s(comparison) - linear_s, linear_s,
                   uneven_s, layer_s(comparison),
                   best_s > 0 ? Cell(layer_s(comparison) / best_s) : Cell()});
  }
  return table;
}

Table fidelity_table(std::span<const ComparedStrategy> comparisons,
                     std::span<const StrategyRuns> runs) {
  Table table({{"strategy", "strategy"},
               {"predicted_forward_s", "forward\npredicted", Format::kMilliseconds},
               {"measured_forward_s", "ms\nmeasured", Format::kMilliseconds},
               {"predicted_backward_s", "backward\npredicted", Format::kMilliseconds},
               {"measured_backward_s", "ms\nmeasured", Format::kMilliseconds},
               {"ratio", "predicted /\nmeasured"}});
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const ComparedStrategy& comparison = comparisons[i];
    if (runs[i].reports.empty()) continue;
    const Fidelity f = fidelity_of(runs[i]);
    table.add_row({choice_text(comparison.choice), f.predicted_forward_s, f.measured_forward_s,
                   f.predicted_backward_s, f.measured_backward_s,
                   f.measured_s() > 0 ? Cell{f.predicted_s() / f.measured_s()} : Cell{}});
  }
  return table;
}

Agreement agreement(std::span<const StrategyRuns> runs) {
  std::vector<double> predicted;
  std::vector<double> measured;
  for (const StrategyRuns& run : runs) {
    if (run.predicted.empty()) continue;
    const Fidelity fidelity = fidelity_of(run);
    predicted.push_back(fidelity.predicted_s());
    measured.push_back(fidelity.measured_s());
  }
  return {rank_correlation(predicted, measured), pair_order(predicted, measured)};
}

std::string agreement_text(const Agreement& agreement) {
  if (!agreement.rank_correlation) return "";
  return fmt::format(
      "rank correlation of predicted and measured time (Spearman): {:.3f}\n"
      "pairs of strategies more than {:.0f}% apart: {}, in the predicted order: {}\n",
      *agreement.rank_correlation, 100 * kTimeNoise, agreement.pairs.differing,
      agreement.pairs.alike);
}

}  // namespace contextile
