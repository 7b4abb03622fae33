// contextile/planner.h: planning and comparing strategies.
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "bind.h"
#include "contextile/advanced/sensitivity.h"
#include "contextile/planner.h"
#include "plan_object.h"

namespace contextile::python {
namespace {

// Returns the options of a plan, other than its strategy.
PlanOptions options_of(std::optional<std::int64_t> block_size,
                       const std::optional<std::string>& wire, bool backward, std::uint64_t seed,
                       std::optional<std::int64_t> token_limit,
                       std::optional<std::int64_t> memory_limit_bytes, std::int64_t tokens_multiple,
                       bool equal_tokens, std::optional<double> linear_us_per_token, bool force,
                       std::int32_t max_roundings, nb::object progress) {
  if (linear_us_per_token && !(std::isfinite(*linear_us_per_token) && *linear_us_per_token >= 0)) {
    fail("linear_us_per_token: expected 0 or more microseconds, found " +
         std::to_string(*linear_us_per_token));
  }
  PlanOptions options;
  options.block_size = block_size;
  if (wire) options.wire = parse_dtype(*wire);
  options.backward = backward;
  options.seed = seed;
  options.limits = {token_limit, memory_limit_bytes};
  options.tokens_multiple = tokens_multiple;
  options.equal_tokens = equal_tokens;
  options.linear_us_per_token = linear_us_per_token;
  options.force = force;
  options.max_roundings = max_roundings;
  options.progress = progress_hook(std::move(progress));
  return options;
}

// The result of one strategy for one batch.
struct Comparison {
  std::string strategy;
  std::string skipped;
  std::string failed;
  std::optional<PlanStats> statistics;
  std::optional<Simulation> simulation;
  BatchBound bound;
  std::optional<double> layer_us;
  std::optional<double> uneven_us;
  double planning_s = 0;
};

// The strategies on a cluster with one constant changed.
struct ChangedStanding {
  ChangedConstant changed;
  Standing standing;
  std::vector<std::string> fastest;
  std::optional<std::string> second;
  std::map<std::string, std::optional<double>> times_us;  // by strategy
};

std::vector<ChangedStanding> standings_of(const Sensitivity& sensitivity) {
  const auto text = [&](std::size_t i) { return choice_text(sensitivity.choices[i]); };
  std::vector<ChangedStanding> rows;
  for (std::size_t c = 0; c < sensitivity.clusters.size(); ++c) {
    ChangedStanding& row = rows.emplace_back();
    row.changed = sensitivity.clusters[c];
    row.standing = standing(sensitivity, c);
    for (const std::size_t i : row.standing.fastest) row.fastest.push_back(text(i));
    if (row.standing.second) row.second = text(*row.standing.second);
    for (std::size_t i = 0; i < sensitivity.choices.size(); ++i) {
      row.times_us[text(i)] = sensitivity.times_us[c][i];
    }
  }
  return rows;
}

std::vector<ChangedStanding> replan_standings(const Workload& workload, const Cluster& cluster,
                                              const std::vector<StrategyChoice>& choices,
                                              const PlanOptions& options) {
  return standings_of(replan_sensitivity({cluster, {workload}, options}, choices));
}

// Also returns the standings of the same plans on changed clusters if `kept_standings` is set.
std::pair<std::vector<Comparison>, std::vector<ChangedStanding>> compare(
    const Workload& workload, const Cluster& cluster, const std::vector<StrategyChoice>& choices,
    const PlanOptions& options, bool kept_standings) {
  const PlanInput input = {cluster, {workload}, options};
  std::optional<SensitivityOfPlans> kept;
  if (kept_standings) kept.emplace(cluster, choices, 1);
  ComparisonHooks hooks;
  hooks.planned = [&](std::size_t strategy, std::size_t batch, const PlannedBatch& planned) {
    if (kept) kept->add(strategy, batch, *planned.plan);
  };
  std::vector<Comparison> rows;
  for (const ComparedStrategy& compared : compare_strategies(input, choices, hooks)) {
    Comparison row;
    row.strategy = choice_text(compared.choice);
    row.skipped = compared.skipped;
    row.failed = compared.failed;
    if (!compared.batches.empty()) {
      const PlannedBatch& batch = compared.batches.front();
      row.statistics = batch.statistics;
      row.planning_s = batch.planning_s();
      if (row.failed.empty() && !batch.verified.ok())
        row.failed = batch.verified.violations.front();
    }
    if (!compared.simulations.empty()) {
      row.simulation = compared.simulations.front();
      row.layer_us = compared.layers_us.front();
      row.uneven_us = compared.uneven_us.front();
    }
    if (!compared.bounds.empty()) row.bound = compared.bounds.front();
    rows.push_back(std::move(row));
  }
  return {std::move(rows), kept ? standings_of(kept->result()) : std::vector<ChangedStanding>()};
}

void bind_standings(nb::module_& module) {
  using Row = ChangedStanding;
  nb::class_<Row>(
      module, "ChangedStanding",
      "Strategies on a cluster with one constant changed (docs/predict.md). Times are µs.")
      .def_prop_ro(
          "constant", [](const Row& row) { return row.changed.constant; },
          "Name of the changed constant; empty for the cluster as it is.")
      .def_prop_ro("was", [](const Row& row) { return row.changed.was; })
      // In C++ it is `is`, which is a keyword of Python.
      .def_prop_ro("value", [](const Row& row) { return row.changed.is; })
      .def_prop_ro("cluster", [](const Row& row) { return row.changed.cluster; })
      .def_ro("fastest", &Row::fastest, "The fastest strategies; several if their times are equal.")
      .def_prop_ro("time_us", [](const Row& row) { return row.standing.time_us; })
      .def_ro("second", &Row::second)
      .def_prop_ro("second_slower_by", [](const Row& row) { return row.standing.second_slower_by; })
      .def_prop_ro("auto_slower_by", [](const Row& row) { return row.standing.auto_slower_by; })
      .def_prop_ro("same_fastest", [](const Row& row) { return row.standing.same_fastest; })
      .def_prop_ro("turned_pairs", [](const Row& row) { return row.standing.turned_pairs; })
      .def_prop_ro("pairs", [](const Row& row) { return row.standing.pairs; })
      .def_ro("times_us", &Row::times_us,
              "Times by strategy; None if it has no plan, or one that never ends.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "ChangedStanding",
                       {"constant", "was", "value", "fastest", "time_us", "second_slower_by"});
      });
}

void bind_comparison(nb::module_& module) {
  nb::class_<Comparison>(
      module, "Comparison",
      "One strategy in a comparison. Times are predictions in µs of one layer of every mask, "
      "forward and backward; None if there is no plan.")
      .def_ro("strategy", &Comparison::strategy)
      .def_ro("skipped", &Comparison::skipped,
              "The reason why the strategy does not apply; empty if it does.")
      .def_ro("failed", &Comparison::failed, "The error of the strategy; empty if there is none.")
      .def_prop_ro("ok",
                   [](const Comparison& row) { return row.skipped.empty() && row.failed.empty(); })
      .def_ro("statistics", &Comparison::statistics)
      .def_ro("simulation", &Comparison::simulation)
      .def_prop_ro("forward_bound", [](const Comparison& row) { return row.bound.forward; })
      .def_prop_ro("backward_bound", [](const Comparison& row) { return row.bound.backward; })
      .def_ro("planning_s", &Comparison::planning_s)
      .def_prop_ro(
          "time_us",
          [](const Comparison& row) -> std::optional<double> {
            if (!row.simulation) return std::nullopt;
            return row.simulation->time_us();
          },
          "Time of attention.")
      .def_ro("layer_us", &Comparison::layer_us,
              "Time of attention and of the linear layers of the device that owns the most tokens. "
              "If the strategy schedules micro-batches, it is the schedule's.")
      .def_ro("uneven_us", &Comparison::uneven_us,
              "The part of it that uneven tokens cost: the linear layers of the tokens that the "
              "fullest device owns above the mean. If the strategy schedules micro-batches, it is "
              "what linear layers take longer than with even tokens.")
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "Comparison", {"strategy", "time_us", "skipped", "failed"});
      });
}

void bind_options(nb::module_& module) {
  nb::class_<PlanOptions>(
      module, "PlanOptions",
      "Options of a plan that do not depend on the strategy. A strategy in Python receives them as "
      "its third argument.")
      .def(
          "__init__",
          [](PlanOptions* self, std::optional<std::int64_t> block_size,
             const std::optional<std::string>& wire, bool backward, std::uint64_t seed,
             std::optional<std::int64_t> token_limit,
             std::optional<std::int64_t> memory_limit_bytes, std::int64_t tokens_multiple,
             bool equal_tokens, std::optional<double> linear_us_per_token, bool force,
             std::int32_t max_roundings, nb::object progress) {
            new (self) PlanOptions(options_of(
                block_size, wire, backward, seed, token_limit, memory_limit_bytes, tokens_multiple,
                equal_tokens, linear_us_per_token, force, max_roundings, std::move(progress)));
          },
          nb::kw_only(), "block_size"_a = nb::none(), "wire"_a = nb::none(), "backward"_a = true,
          "seed"_a = 0, "token_limit"_a = nb::none(), "memory_limit_bytes"_a = nb::none(),
          "tokens_multiple"_a = 1, "equal_tokens"_a = false, "linear_us_per_token"_a = nb::none(),
          "force"_a = false, "max_roundings"_a = PlanOptions().max_roundings,
          "progress"_a = nb::none())
      .def_ro("block_size", &PlanOptions::block_size)
      .def_prop_ro("wire",
                   [](const PlanOptions& options) -> std::optional<std::string> {
                     if (!options.wire) return std::nullopt;
                     return std::string(to_string(*options.wire));
                   })
      .def_ro(
          "max_roundings", &PlanOptions::max_roundings,
          "Where wire is None: how often a partial result may be rounded on its way in the dtype "
          "of the strategy's original. Above it, partial results travel in f32.")
      .def_ro("backward", &PlanOptions::backward)
      .def_ro("seed", &PlanOptions::seed)
      .def_prop_ro("token_limit", [](const PlanOptions& options) { return options.limits.tokens; })
      .def_prop_ro("memory_limit_bytes",
                   [](const PlanOptions& options) { return options.limits.memory_bytes; })
      .def_ro("tokens_multiple", &PlanOptions::tokens_multiple,
              "Every device owns a multiple of so many tokens. contextile sees to it.")
      .def_ro("equal_tokens", &PlanOptions::equal_tokens,
              "Every device owns as many tokens as any other. contextile sees to it.")
      .def_ro("linear_us_per_token", &PlanOptions::linear_us_per_token,
              "Time of a token outside attention: the matrix products of one layer, forward, µs on "
              "its device. None: a guess from the attention's width.");
  module.attr("ANY_ROUNDINGS") = kAnyRoundings;
}

}  // namespace

PlanObject object_of(PlannedBatch planned, const Cluster& cluster, const std::string& strategy) {
  if (!planned.verified.ok()) {
    throw CheckFailed(strategy + ": " + std::to_string(planned.verified.num_violations) +
                      " violations: " + planned.verified.violations.front());
  }
  return {std::move(planned.plan), cluster,          planned.arrange_s,
          planned.build_s,         planned.verify_s, std::move(planned.search)};
}

void bind_planning(nb::module_& module) {
  bind_options(module);
  const auto release = nb::call_guard<WithoutGil>();
  module.def("unsupported_reason", &unsupported_reason, "workload"_a, "cluster"_a, "choice"_a,
             "options"_a, release,
             "Returns why a strategy cannot plan a batch, or None. Raises InvalidArgument on bad "
             "options.");
  module.def(
      "plan_batch",
      [](const Workload& workload, const Cluster& cluster, const StrategyChoice& choice,
         const PlanOptions& options) {
        return object_of(plan_batch(workload, cluster, choice, options), cluster,
                         choice_text(choice));
      },
      "workload"_a, "cluster"_a, "choice"_a, "options"_a, release);
  module.def(
      "plan_arrangement",
      [](const Workload& workload, const Cluster& cluster, const Arrangement& arrangement,
         const PlanOptions& options) {
        return object_of(plan_arrangement(workload, cluster, arrangement, options), cluster,
                         arrangement.strategy);
      },
      "workload"_a, "cluster"_a, "arrangement"_a, "options"_a, release);

  bind_comparison(module);
  bind_standings(module);
  module.def("compare", &compare, "workload"_a, "cluster"_a, "choices"_a, "options"_a,
             "kept_standings"_a, release);
  module.def("replan_standings", &replan_standings, "workload"_a, "cluster"_a, "choices"_a,
             "options"_a, release);
}

}  // namespace contextile::python
