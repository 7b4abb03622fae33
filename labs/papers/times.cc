#include "labs/papers/times.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "contextile/simulate.h"

namespace contextile {
namespace {

struct TimedWay {
  StrategyChoice choice;
  Predicted predicted;
};

// The fastest way; the first one's reason if no way applies.
TimedWay fastest_way(const TimedMethod& method, PlanInput input, std::span<const Workload> batches,
                     Mean mean, Progress& progress) {
  if (!method.engine.empty()) use_engine_of_method(method.engine, input.cluster);
  if (!method.own_batches.empty()) batches = method.own_batches;
  std::optional<TimedWay> fastest;
  for (const StrategyChoice& choice : method.ways) {
    progress.step(choice_text(choice));
    Predicted predicted = predict_times(choice, input, batches, mean);
    if (!fastest || predicted.total_s < fastest->predicted.total_s) {
      fastest = TimedWay{choice, std::move(predicted)};
    }
  }
  return *std::move(fastest);
}

}  // namespace

Predicted predict_times(const StrategyChoice& choice, const PlanInput& input,
                        std::span<const Workload> batches, Mean mean) {
  Predicted found;
  std::array<double, 3> sums{};  // of logarithms for geometric means
  for (const Workload& workload : batches) {
    if (const auto reason = unsupported_reason(workload, input.cluster, choice, input.options)) {
      found.skipped = *reason;
      return found;
    }
    const PlannedBatch planned = plan_and_check(workload, input.cluster, choice, input.options);
    const Simulation simulation = simulate(*planned.plan, input.cluster);
    const std::array<double, 3> values = {simulation.forward->time_us, simulation.backward->time_us,
                                          simulation.time_us()};
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += mean == Mean::kGeometric ? std::log(values[i]) : values[i];
    }
    found.totals_s.push_back(1e-6 * values.back());
  }
  for (double& sum : sums) {
    sum /= static_cast<double>(batches.size());
    if (mean == Mean::kGeometric) sum = std::exp(sum);
  }
  found.forward_s = 1e-6 * sums[0];
  found.backward_s = 1e-6 * sums[1];
  found.total_s = 1e-6 * sums[2];
  return found;
}

std::vector<Column> time_columns(std::vector<Column> first) {
  for (const Column& column :
       std::vector<Column>{{"forward_s", "forward\nms", Format::kMilliseconds},
                           {"backward_s", "backward\nms", Format::kMilliseconds},
                           {"total_s", "total\nms", Format::kMilliseconds},
                           {"gain_p10", ""},
                           {"gain_p90", ""},
                           {"gain", "gain"}}) {
    first.push_back(column);
  }
  return first;
}

std::optional<Gain> add_times(std::span<const TimedMethod> methods, const PlanInput& input,
                              std::span<const Workload> batches, const std::vector<Cell>& labels,
                              Progress& progress, Table& table, Mean mean) {
  std::vector<TimedWay> times;
  for (const TimedMethod& method : methods) {
    times.push_back(fastest_way(method, input, batches, mean, progress));
  }
  const double ours_s = times[0].predicted.total_s;
  const bool applies = ours_s < kInfinity;
  double fastest_s = kInfinity;
  Gain over_fastest;
  for (std::size_t i = 0; i < times.size(); ++i) {
    const auto& [choice, predicted] = times[i];
    std::vector<Cell> cells = labels;
    cells.emplace_back(choice_text(choice));
    if (!predicted.skipped.empty()) {
      table.add_row(std::move(cells), skipped_note(choice, predicted.skipped));
      continue;
    }
    cells.insert(cells.end(), {predicted.forward_s, predicted.backward_s, predicted.total_s});
    Gain gain;
    if (applies) {
      gain = {predicted.total_s / ours_s,
              spread_of_ratios(predicted.totals_s, times[0].predicted.totals_s)};
      cells.insert(cells.end(), {gain.spread.p10, gain.spread.p90, gain.mean});
    }
    table.add_row(std::move(cells));
    if (i == 0 || predicted.total_s >= fastest_s) continue;
    fastest_s = predicted.total_s;
    over_fastest = gain;
  }
  if (!applies || fastest_s == kInfinity) return std::nullopt;
  return over_fastest;
}

std::optional<Gain> add_times(std::span<const StrategyChoice> choices, const PlanInput& input,
                              std::span<const Workload> batches, const std::vector<Cell>& labels,
                              Progress& progress, Table& table) {
  std::vector<TimedMethod> methods;
  for (const StrategyChoice& choice : choices) methods.push_back({.ways = {choice}});
  return add_times(methods, input, batches, labels, progress, table);
}

std::string skipped_note(const StrategyChoice& choice, std::string_view reason) {
  return fmt::format("{} skipped: {}", choice_text(choice), reason);
}

PaperResult timed_result(const PaperSetting& setting, Table table) {
  return {.setting = setting.description(),
          .table = std::move(table),
          .differences = {kTimesAreSimulated, kLengthsAreSampled}};
}

}  // namespace contextile
