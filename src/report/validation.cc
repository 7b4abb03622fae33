#include "contextile/advanced/validation.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <tuple>

#include "base/check.h"
#include "base/interrupt.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "contextile/workload.h"
#include "report/document_batches.h"
#include "report/held_rows.h"
#include "report/measured_steps.h"
#include "report/time_order.h"

namespace contextile {
namespace {

// The plans of one setting, which rows of several directions may share, and their predicted times.
struct SharedPlans {
  const MeasuredRow* row = nullptr;  // the first of these rows
  const Cluster* cluster = nullptr;
  std::string reason;     // why there is none
  double forward_ms = 0;  // means over the row's batches
  double backward_ms = 0;
  double step_ms = 0;  // of a row that is a step; its plans have nothing else

  [[nodiscard]] double ms(RowDirection direction) const {
    if (direction == RowDirection::kStep) return step_ms;
    return (direction == RowDirection::kBackward ? 0 : forward_ms) +
           (direction == RowDirection::kForward ? 0 : backward_ms);
  }
};

using SettingKey =
    std::tuple<std::string, std::string, std::string, std::string, std::string, std::string,
               std::int32_t, std::int32_t, std::int32_t, Dtype, std::optional<Dtype>, std::string>;

SettingKey setting_key(const MeasuredRow& row) {
  return {row.cluster_text,  row.kernel_text,    row.engine_text,
          row.strategy_text, row.lengths_text,   row.mask_text,
          row.shape.q_heads, row.shape.kv_heads, row.shape.head_dim,
          row.shape.dtype,   row.wire,           row.step ? step_text(*row.step) : ""};
}

std::string place_of(const std::string& name, const MeasuredRow& row) {
  return fmt::format("{}: line {}", name, row.line);
}

PlanOptions plan_options(const MeasuredRow& row) {
  PlanOptions options;
  options.wire = row.wire;
  options.max_roundings = kAnyRoundings;  // as the originals, which are what was measured
  return options;
}

Workload batch_workload(const MeasuredRow& row, const DocumentBatch& batch) {
  return make_workload(lengths_of(batch), row.shape, row.mask);
}

std::string shape_reason(const Cluster& own, const Cluster& given) {
  return fmt::format("measured on {} x {} devices, the given cluster has {} x {}", own.nodes,
                     own.devices_per_node, given.nodes, given.devices_per_node);
}

std::string no_strategy_reason(const MeasuredRow& row) {
  const std::string reason = "no strategy here does the same";
  return row.note.empty() ? reason : fmt::format("{}: {}", reason, row.note);
}

// Returns the reason against predicting the row, which has a strategy, or nothing. Throws on
// options and masks that do not fit.
std::string reason_against(const SharedPlans& plans, const ValidationOptions& options) {
  const MeasuredRow& row = *plans.row;
  if (options.cluster && (options.cluster->nodes != row.cluster->nodes ||
                          options.cluster->devices_per_node != row.cluster->devices_per_node)) {
    return shape_reason(*row.cluster, *options.cluster);
  }
  const Cluster group =
      row.step ? context_parallel_cluster(*plans.cluster, row.step->sizes) : *plans.cluster;
  // A schedule deals the documents of a whole step, so one batch says nothing against it.
  const bool is_deciding = !row.step || !is_scheduled(step_setting_of(row));
  for (const DocumentBatch& batch : row.batches) {
    const Workload workload = batch_workload(row, batch);
    check_workload(workload);
    const auto reason = unsupported_reason(workload, group, *row.strategy, plan_options(row));
    if (reason && is_deciding) return choice_text(*row.strategy) + " " + *reason;
  }
  return "";
}

void predict(SharedPlans& plans) {
  const MeasuredRow& row = *plans.row;
  if (row.step) {
    const PredictedSteps steps = predict_steps(row, *plans.cluster, plan_options(row));
    plans.step_ms = steps.ms;
    plans.reason = steps.reason;
    return;
  }
  for (const DocumentBatch& batch : row.batches) {
    const PlannedBatch planned = plan_and_check(batch_workload(row, batch), *plans.cluster,
                                                *row.strategy, plan_options(row));
    const Simulation simulation = simulate(*planned.plan, *plans.cluster);
    const double share_ms = 1e-3 / static_cast<double>(row.batches.size());
    plans.forward_ms += share_ms * simulation.forward->time_us;
    plans.backward_ms += share_ms * simulation.backward->time_us;
  }
}

std::map<SettingKey, SharedPlans> plans_of(const MeasuredRows& measured,
                                           const ValidationOptions& options) {
  std::map<SettingKey, SharedPlans> all;
  for (const MeasuredRow& row : measured.rows) {
    check_interrupt();
    if (!row.strategy) continue;
    SharedPlans& plans = all[setting_key(row)];
    if (plans.row != nullptr) continue;
    plans.row = &row;
    plans.cluster = options.cluster ? &*options.cluster : row.cluster.get();
    try {
      plans.reason = reason_against(plans, options);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("{}: {}", place_of(measured.name, row), error.what()));
    }
  }
  return all;
}

void predict_all(const std::string& name, const ValidationOptions& options,
                 std::map<SettingKey, SharedPlans>& all) {
  const auto total = static_cast<std::int64_t>(all.size());
  std::int64_t done = 0;
  for (auto& [key, plans] : all) {
    check_interrupt();
    if (options.progress) options.progress(choice_text(*plans.row->strategy), done, total);
    ++done;
    if (!plans.reason.empty()) continue;
    try {
      predict(plans);
    } catch (const InvalidArgument& error) {  // such as a plan of too many tiles
      plans.reason = error.what();
    } catch (const CheckFailed& failure) {
      throw CheckFailed(fmt::format("{}: {}", place_of(name, *plans.row), failure.what()));
    }
  }
}

// The group of `groups` with the key, which becomes the last one if it is new.
template <typename Key, typename Group>
Group& group_at(const Key& key, std::map<Key, std::size_t>& index, std::vector<Group>& groups) {
  const auto [place, is_new] = index.try_emplace(key, groups.size());
  if (is_new) groups.emplace_back();
  return groups[place->second];
}

std::vector<HeldMethod> methods_of(const std::vector<HeldRow>& rows) {
  std::map<std::tuple<std::string, std::string, RowKind, RowSplit>, std::size_t> index;
  std::vector<HeldMethod> methods;
  std::vector<std::vector<double>> ratios;
  for (const HeldRow& held : rows) {
    const MeasuredRow& row = held.row;
    HeldMethod& method = group_at({row.source, row.method, row.kind(), row.split}, index, methods);
    method.source = row.source;
    method.method = row.method;
    method.kind = row.kind();
    method.split = row.split;
    ratios.resize(methods.size());
    const auto place = static_cast<std::size_t>(&method - methods.data());
    if (held.predicted_ms) {
      ratios[place].push_back(held.ratio());
    } else {
      ++method.unpredicted;
    }
  }
  for (std::size_t i = 0; i < methods.size(); ++i) methods[i].ratios = summary_of(ratios[i]);
  return methods;
}

double mean_ms(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The times of one method in one experiment.
struct MethodTimes {
  std::vector<double> predicted_ms;
  std::vector<double> measured_ms;
};
struct ExperimentTimes {
  const MeasuredRow* row = nullptr;  // the first one
  std::map<std::string, MethodTimes> methods;
};

std::vector<HeldExperiment> experiments_of(const std::vector<HeldRow>& rows) {
  using Key = std::tuple<std::string, RowSplit, std::string, std::string>;
  std::map<Key, std::size_t> index;
  std::vector<ExperimentTimes> all;
  for (const HeldRow& held : rows) {
    if (!held.predicted_ms) continue;
    const MeasuredRow& row = held.row;
    // The label shortens lists of documents, so the key has them whole.
    const Key key{row.source, row.split,
                  fmt::format("{}\n{}\n{}", row.cluster_text, row.lengths_text, row.experiment),
                  setting_text(row)};
    ExperimentTimes& times = group_at(key, index, all);
    if (times.row == nullptr) times.row = &row;
    times.methods[row.method].predicted_ms.push_back(*held.predicted_ms);
    times.methods[row.method].measured_ms.push_back(row.ms);
  }
  std::vector<HeldExperiment> experiments;
  for (const ExperimentTimes& times : all) {
    if (times.methods.size() < 2) continue;
    std::vector<double> predicted_ms;
    std::vector<double> measured_ms;
    for (const auto& [method, of_method] : times.methods) {
      predicted_ms.push_back(mean_ms(of_method.predicted_ms));
      measured_ms.push_back(mean_ms(of_method.measured_ms));
    }
    experiments.push_back({.source = times.row->source,
                           .split = times.row->split,
                           .batch = batch_text(*times.row),
                           .shape = shape_text(*times.row),
                           .methods = times.methods.size(),
                           .order = kendall_order(predicted_ms, measured_ms, kMeasuredTie)});
  }
  return experiments;
}

// Fitted rows first, so that the two splits do not alternate.
template <typename Group>
void sort_by_split(std::vector<Group>& groups) {
  std::stable_partition(groups.begin(), groups.end(),
                        [](const Group& group) { return group.split == RowSplit::kFitted; });
}

}  // namespace

Validation validate_rows(const MeasuredRows& measured, const ValidationOptions& options) {
  std::map<SettingKey, SharedPlans> plans = plans_of(measured, options);
  predict_all(measured.name, options, plans);
  Validation validation{.name = measured.name, .rows = {}, .methods = {}, .experiments = {}};
  for (const MeasuredRow& row : measured.rows) {
    HeldRow& held = validation.rows.emplace_back(
        HeldRow{.row = row, .predicted_ms = std::nullopt, .reason = ""});
    if (!row.strategy) {
      held.reason = no_strategy_reason(row);
      continue;
    }
    const SharedPlans& of_row = plans.at(setting_key(row));
    held.reason = of_row.reason;
    if (of_row.reason.empty()) held.predicted_ms = of_row.ms(row.direction);
  }
  validation.methods = methods_of(validation.rows);
  validation.experiments = experiments_of(validation.rows);
  sort_by_split(validation.methods);
  sort_by_split(validation.experiments);
  return validation;
}

}  // namespace contextile
