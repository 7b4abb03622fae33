#include "cli/commands/plan_prediction.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "contextile/simulate.h"

namespace contextile {
namespace {

constexpr const char* kReference = "zigzag";
constexpr std::size_t kLabelColumns = 10;

void add_reference(const Workload& workload, const Cluster& cluster, const PlanOptions& options,
                   PlanPrediction& prediction) {
  const StrategyChoice reference{kReference};
  if (unsupported_reason(workload, cluster, reference, options)) return;
  PlanOptions quiet = options;
  quiet.progress = {};
  quiet.max_roundings = kAnyRoundings;  // as in comparisons
  const PlannedBatch planned = plan_batch(workload, cluster, reference, quiet);
  if (!planned.verified.ok()) return;
  prediction.other = kReference;
  prediction.other_us = simulate(*planned.plan, cluster).time_us();
}

}  // namespace

PlanPrediction predict_planned(const Workload& workload, const Cluster& cluster,
                               const StrategyChoice& choice, const PlannedBatch& planned,
                               const PlanOptions& options) {
  const Simulation simulation = simulate(*planned.plan, cluster);
  PlanPrediction prediction;
  prediction.time_us = simulation.time_us();
  double exposed_us = 0;
  for (const auto& [direction, simulated] : simulation.directions()) {
    exposed_us += simulated->exposed_us;
  }
  if (prediction.time_us > 0) prediction.waiting = exposed_us / prediction.time_us;
  if (planned.search) {
    prediction.is_searched = true;
    if (planned.search->best_other_us && planned.search->best_other != planned.search->winner) {
      prediction.other = planned.search->best_other;
      prediction.other_us = *planned.search->best_other_us;
    }
  } else if (choice.name != kReference) {
    add_reference(workload, cluster, options, prediction);
  }
  return prediction;
}

std::string prediction_text(const PlanPrediction& prediction) {
  std::string text =
      fmt::format("predicted {} for one layer of attention; devices wait {} of it\n",
                  milliseconds(1e-6 * prediction.time_us), percent(prediction.waiting));
  if (prediction.other.empty()) return text;
  const std::string words = fmt::format(
      "{}{}: predicted {}, {:.2f} times as long", prediction.other,
      prediction.is_searched ? ", the best other method that the search simulated" : "",
      milliseconds(1e-6 * prediction.other_us), prediction.other_us / prediction.time_us);
  return text +
         fmt::format("{:{}}{}\n", "", kLabelColumns,
                     wrap(words, kTextColumns, {.first = kLabelColumns, .others = kLabelColumns}));
}

Json prediction_json(const PlanPrediction& prediction) {
  Json document = {{"time_s", 1e-6 * prediction.time_us}, {"waiting", prediction.waiting}};
  if (!prediction.other.empty()) {
    document["other"] = prediction.other;
    document["other_s"] = 1e-6 * prediction.other_us;
  }
  return document;
}

}  // namespace contextile
