// contextile/planner.h: from a batch to a verified plan, and strategies side by side.
#include <string>

#include "bind.h"
#include "contextile/planner.h"
#include "plan_object.h"

namespace contextile::python {
namespace {

// What is asked of a plan beside its strategy.
PlanOptions options_of(std::optional<std::int64_t> block_size,
                       const std::optional<std::string>& wire, bool backward, std::uint64_t seed,
                       std::optional<std::int64_t> token_limit,
                       std::optional<std::int64_t> memory_limit_bytes, nb::object progress) {
  PlanOptions options;
  options.block_size = block_size;
  if (wire) options.wire = parse_dtype(*wire);
  options.backward = backward;
  options.seed = seed;
  options.token_limit = token_limit;
  options.memory_limit_bytes = memory_limit_bytes;
  options.progress = progress_hook(std::move(progress));
  return options;
}

PlanObject object_of(PlannedBatch planned, const Cluster& cluster, const std::string& strategy) {
  if (!planned.verified.ok()) {
    throw CheckFailed(strategy + ": " + std::to_string(planned.verified.num_violations) +
                      " violations: " + planned.verified.violations.front());
  }
  return {std::move(planned.plan), cluster, planned.arrange_s, planned.build_s, planned.verify_s};
}

// What compare says of one strategy and one batch.
struct Comparison {
  std::string strategy;
  std::string skipped;
  std::string failed;
  std::optional<PlanStats> statistics;
  std::optional<Simulation> simulation;
  BatchBound bound;
  double planning_s = 0;
};

std::vector<Comparison> compare(const Workload& workload, const Cluster& cluster,
                                const std::vector<StrategyChoice>& choices,
                                const PlanOptions& options) {
  const PlanInput input = {cluster, {workload}, options};
  std::vector<Comparison> rows;
  for (const ComparedStrategy& compared : compare_strategies(input, choices)) {
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
    if (!compared.simulations.empty()) row.simulation = compared.simulations.front();
    if (!compared.bounds.empty()) row.bound = compared.bounds.front();
    rows.push_back(std::move(row));
  }
  return rows;
}

void bind_comparison(nb::module_& module) {
  nb::class_<Comparison>(module, "Comparison", "One strategy in a comparison.")
      .def_ro("strategy", &Comparison::strategy)
      .def_ro("skipped", &Comparison::skipped, "Why it does not apply; empty: it does.")
      .def_ro("failed", &Comparison::failed, "What went wrong; empty: nothing.")
      .def_prop_ro("ok",
                   [](const Comparison& row) { return row.skipped.empty() && row.failed.empty(); })
      .def_ro("statistics", &Comparison::statistics)
      .def_ro("simulation", &Comparison::simulation)
      .def_prop_ro("forward_bound", [](const Comparison& row) { return row.bound.forward; })
      .def_prop_ro("backward_bound", [](const Comparison& row) { return row.bound.backward; })
      .def_ro("planning_s", &Comparison::planning_s)
      .def_prop_ro("time_us",
                   [](const Comparison& row) -> std::optional<double> {
                     if (!row.simulation) return std::nullopt;
                     return row.simulation->time_us();
                   })
      .def("__repr__", [](nb::handle self) {
        return repr_of(self, "Comparison", {"strategy", "time_us", "skipped", "failed"});
      });
}

}  // namespace

void bind_planning(nb::module_& module) {
  nb::class_<PlanOptions>(module, "PlanOptions", "What is asked of a plan, whatever the strategy.")
      .def(
          "__init__",
          [](PlanOptions* self, std::optional<std::int64_t> block_size,
             const std::optional<std::string>& wire, bool backward, std::uint64_t seed,
             std::optional<std::int64_t> token_limit,
             std::optional<std::int64_t> memory_limit_bytes, nb::object progress) {
            new (self) PlanOptions(options_of(block_size, wire, backward, seed, token_limit,
                                              memory_limit_bytes, std::move(progress)));
          },
          nb::kw_only(), "block_size"_a = nb::none(), "wire"_a = nb::none(), "backward"_a = true,
          "seed"_a = 0, "token_limit"_a = nb::none(), "memory_limit_bytes"_a = nb::none(),
          "progress"_a = nb::none())
      .def_ro("block_size", &PlanOptions::block_size)
      .def_prop_ro("wire",
                   [](const PlanOptions& options) -> std::optional<std::string> {
                     if (!options.wire) return std::nullopt;
                     return std::string(to_string(*options.wire));
                   })
      .def_ro("backward", &PlanOptions::backward)
      .def_ro("seed", &PlanOptions::seed)
      .def_ro("token_limit", &PlanOptions::token_limit)
      .def_ro("memory_limit_bytes", &PlanOptions::memory_limit_bytes);

  const auto release = nb::call_guard<nb::gil_scoped_release>();
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
  module.def("unsupported_reason", &unsupported_reason, "workload"_a, "cluster"_a, "choice"_a,
             "options"_a, release, "Why the strategy cannot plan this batch, or None.");

  bind_comparison(module);
  module.def("compare", &compare, "workload"_a, "cluster"_a, "choices"_a, "options"_a, release);
}

}  // namespace contextile::python
