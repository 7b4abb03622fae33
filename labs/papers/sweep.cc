// Every strategy over the built-in datasets, five masks and 8 to 256 devices: which ones apply,
// whether all plans verify, and how the methods compare.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "contextile/data.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/simulate.h"
#include "labs/papers/findings.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"
#include "report/fidelity.h"

namespace contextile {
namespace {

constexpr std::int64_t kTokensPerDevice = 4096;
constexpr std::array<std::int32_t, 4> kDevices = {8, 32, 64, 256};
constexpr std::int32_t kMostSearched = 64;  // devices up to which `auto` takes part
constexpr std::array<const char*, 5> kMasks = {"causal", "lambda:64,4096",
                                               "causal_blockwise:256,2,1", "shared_question:0.2,4",
                                               "sliding_window:4096"};

class MeanOfRatios {
 public:
  void add(double ratio) {
    log_sum_ += std::log(ratio);
    ++count_;
  }
  [[nodiscard]] Cell value() const {
    return count_ == 0 ? Cell{} : Cell{std::exp(log_sum_ / count_)};
  }

 private:
  double log_sum_ = 0;
  std::int64_t count_ = 0;
};

struct Standing {
  std::int64_t plans = 0;
  std::int64_t skipped = 0;
  std::set<std::string> reasons;
  double inter_share = 0;  // sums over plans
  double compute_overload = 0;
  MeanOfRatios of_fastest;
  MeanOfRatios of_bound;
  std::vector<double> planning_s;
};

struct Outcome {
  double time_us = 0;
  double bound_us = 0;
};

std::optional<Outcome> plan_one(const StrategyChoice& choice, const PlanInput& input,
                                const Workload& workload, Standing& standing) {
  if (const auto reason = unsupported_reason(workload, input.cluster, choice, input.options)) {
    ++standing.skipped;
    // Only up to the colon: the rest differs from batch to batch.
    standing.reasons.insert(reason->substr(0, reason->find(':')));
    return std::nullopt;
  }
  const PlannedBatch planned = plan_and_check(workload, input.cluster, choice, input.options);
  const Simulation simulation = simulate(*planned.plan, input.cluster);
  const BatchBound bound = bound_beside(*planned.plan, workload, input.cluster, simulation);
  ++standing.plans;
  const DirectionStats& forward = *planned.statistics.forward;
  const auto total = static_cast<double>(forward.total_bytes());
  standing.inter_share += total > 0 ? static_cast<double>(forward.inter_bytes) / total : 0;
  standing.compute_overload += forward.compute_overload;
  standing.planning_s.push_back(planned.planning_s());
  return Outcome{simulation.time_us(), bound.forward->time_us + bound.backward->time_us};
}

std::vector<PaperSetting> settings_of(const TableOverrides& overrides) {
  std::vector<PaperSetting> settings;
  for (const std::int32_t devices : kDevices) {
    PaperSetting setting;
    for (const Dataset& dataset : datasets()) setting.datasets.emplace_back(dataset.name);
    setting.cluster_name = fmt::format("dgx-h200:{}x8", devices / 8);
    setting.batch.tokens = kTokensPerDevice * devices;
    setting.shape.q_heads = 32;
    setting.shape.kv_heads = 8;
    apply_overrides(overrides, setting);
    if (!overrides.tokens) {
      setting.batch.tokens = kTokensPerDevice * setting.input.cluster.num_devices();
    }
    setting.batch.max_length = setting.batch.tokens;
    settings.push_back(std::move(setting));
    if (!overrides.cluster.empty()) break;
  }
  return settings;
}

Table table_of(const std::vector<StrategyChoice>& choices, std::map<std::string, Standing>& all) {
  Table table({{"strategy", "strategy"},
               {"plans", "plans"},
               {"skipped", "skipped"},
               {"inter_share", "between\nnodes", Format::kPercent},
               {"compute_overload", "FLOPs\noverload", Format::kPercent},
               {"of_fastest", "x the\nfastest"},
               {"of_bound", "x the\nbound"},
               {"planning_s", "plan\nms", Format::kMilliseconds},
               {"reasons", ""}});
  for (const StrategyChoice& choice : choices) {
    Standing& standing = all[choice.name];
    std::vector<double>& planning = standing.planning_s;
    if (planning.empty()) {
      table.add_row({choice.name, standing.plans, standing.skipped});
      continue;
    }
    const auto middle = planning.begin() + static_cast<std::ptrdiff_t>(planning.size() / 2);
    std::nth_element(planning.begin(), middle, planning.end());
    const auto plans = static_cast<double>(standing.plans);
    table.add_row({choice.name, standing.plans, standing.skipped, standing.inter_share / plans,
                   standing.compute_overload / plans, standing.of_fastest.value(),
                   standing.of_bound.value(), *middle,
                   fmt::format("{}", fmt::join(standing.reasons, "; "))});
  }
  return table;
}

using Standings = std::map<std::string, Standing>;

// Plans one batch with every strategy and ranks those that apply.
void rank_on(const Workload& workload, const PlanInput& input,
             const std::vector<StrategyChoice>& choices, Progress& progress, Standings& standings) {
  std::map<std::string, Outcome> outcomes;
  double fastest_us = kInfinity;
  for (const StrategyChoice& choice : choices) {
    progress.step(choice.name);
    if (choice.name == "auto" && input.cluster.num_devices() > kMostSearched) continue;
    const auto outcome = plan_one(choice, input, workload, standings[choice.name]);
    if (!outcome) continue;
    outcomes[choice.name] = *outcome;
    fastest_us = std::min(fastest_us, outcome->time_us);
  }
  for (const auto& [name, outcome] : outcomes) {
    standings[name].of_fastest.add(outcome.time_us / fastest_us);
    standings[name].of_bound.add(outcome.time_us / outcome.bound_us);
  }
}

Standings rank(const std::vector<PaperSetting>& settings,
               const std::vector<StrategyChoice>& choices, const TableOverrides& overrides) {
  std::int64_t steps = 0;
  for (const PaperSetting& setting : settings) {
    steps += static_cast<std::int64_t>(setting.datasets.size() * kMasks.size() * choices.size()) *
             setting.batch.batches;
  }
  Progress progress(overrides, steps);
  Standings standings;
  for (const PaperSetting& setting : settings) {
    for (const std::string& dataset : setting.datasets) {
      for (const char* mask : kMasks) {
        for (const Workload& workload : setting.batches(dataset, mask)) {
          rank_on(workload, setting.input, choices, progress, standings);
        }
      }
    }
  }
  return standings;
}

PaperResult make(const TableOverrides& overrides) {
  std::vector<StrategyChoice> choices;
  for (const Strategy* strategy : strategies()) {
    choices.push_back({std::string(strategy->name()), {}});
    // The papers compare attention.
    if (strategy->name() == "auto") choices.back().options["objective"] = "attention";
  }
  const std::vector<PaperSetting> settings = settings_of(overrides);
  Standings standings = rank(settings, choices, overrides);
  std::int64_t plans = 0;
  for (const auto& [name, standing] : standings) plans += standing.plans;
  PaperResult result{.setting = settings.back().description(),
                     .table = table_of(choices, standings),
                     .plots = {{.x = "strategy", .y = {"of_fastest", "of_bound"}}}};
  std::vector<std::string> sizes;
  sizes.reserve(settings.size());
  for (const PaperSetting& setting : settings) {
    sizes.push_back(fmt::format("{}", setting.input.cluster.num_devices()));
  }
  result.setting[2].second =
      fmt::format("{}, {} devices", settings.front().input.cluster.name, fmt::join(sizes, ", "));
  result.setting.emplace_back("masks", fmt::format("{}", fmt::join(kMasks, ", ")));
  result.setting.emplace_back(
      "plans", fmt::format("{}, each verified: a violation would have ended the run", plans));
  for (const StrategyChoice& choice : choices) {
    const Standing& standing = standings[choice.name];
    if (standing.skipped == 0) continue;
    result.differences.push_back(fmt::format("{} skipped {} times: {}", choice.name,
                                             standing.skipped, fmt::join(standing.reasons, "; ")));
  }
  result.differences.push_back(fmt::format(
      "auto takes part up to {} devices, where its search takes seconds. Means over plans, "
      "geometric ones of ratios of predicted time; planning time is the median.",
      kMostSearched));
  return result;
}

}  // namespace

PaperTable sweep() {
  return {"sweep", "all strategies", "datasets x five masks x 8, 32, 64, 256 devices, side by side",
          make};
}

}  // namespace contextile
