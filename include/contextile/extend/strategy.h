// The interface of context-parallel methods: one pure function from (workload, cluster, options) to
// an arrangement. planner.h lists the available strategies.
//
//   const Workload batch = make_workload(std::vector<std::int64_t>{90'000}, AttentionShape{});
//   const Cluster cluster = load_cluster("dgx-h200:1x8");
//   const Strategy& strategy = find_strategy("zigzag");
//   if (const auto reason = strategy.unsupported(batch, cluster, {})) std::puts(reason->c_str());
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"
#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/plan_options.h"
#include "contextile/workload.h"

namespace contextile {

// One key of `--strategy name:key=value`.
struct OptionSpec {
  std::string name;
  std::string default_value;
  std::string help;                 // meaning, unit, allowed values
  std::vector<std::string> values;  // all values of a choice; empty: not a choice
};

// The options of a plan by one strategy, with the strategy's own options.
struct StrategyRequest : PlanOptions {
  std::map<std::string, std::string> options = {};  // key → value; unknown keys are errors
  SearchHook searched = {};  // of strategies with search_phases(); may be empty
  // Names of search_phases() that do not run, for tests and experiments. The library's strategies
  // refuse an unknown name, and any name if they have no phases, with InvalidArgument. Plans do not
  // record it and PlanOptions do not have it, so plan_batch, planners and their stores never make
  // or keep such a plan: `arrange` makes its arrangement, `plan_arrangement` (planner.h) its plan.
  // Without the last phases of `auto` a search may find no plan; it then throws InvalidArgument.
  std::vector<std::string> disabled_phases = {};
};

// Returns the request that a choice with its own options makes of its strategy.
[[nodiscard]] StrategyRequest request_of(const StrategyChoice& choice, const PlanOptions& options);

// The micro-batches of a batch, and how the original attends each of them.
struct BatchSchedule {
  std::vector<ScheduleRound> rounds;           // together they hold every sequence once
  std::map<std::string, std::string> options;  // of the strategy, as used, defaults filled in
  StrategyChoice attention;                    // inside a group
  std::optional<Dtype> wire = {};              // of its partial results; unset: that of `attention`
};

// How a strategy that leaves no block size open decides which device computes what.
enum class Deciding : std::uint8_t { kByRule, kBySearch };

class Strategy {
 public:
  virtual ~Strategy() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  // The source (paper, section) and the method, in one line.
  [[nodiscard]] virtual std::string_view summary() const = 0;
  [[nodiscard]] virtual std::vector<OptionSpec> options() const = 0;

  // `auto` estimates planning time from it: a search takes longer with many devices.
  [[nodiscard]] virtual Deciding deciding() const { return Deciding::kByRule; }

  // The phases of its search, in order, none of them run; empty if the strategy does not search in
  // phases. A strategy that has phases calls StrategyRequest::searched and leaves out those of
  // StrategyRequest::disabled_phases.
  [[nodiscard]] virtual std::vector<SearchPhase> search_phases() const { return {}; }

  // Returns why this strategy cannot serve the request, or nothing. Throws InvalidArgument on bad
  // options and unknown phases.
  [[nodiscard]] virtual std::optional<std::string> unsupported(
      const Workload& workload, const Cluster& cluster, const StrategyRequest& request) const = 0;

  // Returns token block sizes worth trying if the request leaves the size open, best guess first.
  // Empty: no size is open. plan_batch tries them and keeps the plan that is predicted fastest,
  // linear layers included. Throws InvalidArgument on bad options.
  [[nodiscard]] virtual std::vector<std::int64_t> block_sizes(const StrategyRequest&) const {
    return {};
  }

  // Returns options worth trying for this workload on this cluster, best guess first; the defaults
  // are the first of them. All of the request except its options counts. Searches take their
  // candidates from here, at every block size that a variant leaves open; some may be
  // unsupported().
  [[nodiscard]] virtual std::vector<std::map<std::string, std::string>> variants(
      const Workload&, const Cluster&, const StrategyRequest&) const {
    return {{}};
  }

  // Returns true if the original runs a batch as micro-batches of groups of ranks (`schedule`).
  // Most originals run all of it at once.
  [[nodiscard]] virtual bool has_schedule() const { return false; }
  // Returns those micro-batches; `arrange` puts the same work into one plan. Throws InvalidArgument
  // on bad options, with the reason when it cannot, and if has_schedule() is false.
  [[nodiscard]] virtual BatchSchedule schedule(const Workload& workload, const Cluster& cluster,
                                               const StrategyRequest& request) const;

  // Makes an arrangement, with the first of block_sizes() if the request leaves the size open.
  // Deterministic: the same arguments give the same arrangement on any number of threads. Throws
  // InvalidArgument on bad options and unknown phases, and with the reason when unsupported().
  [[nodiscard]] virtual Arrangement arrange(const Workload& workload, const Cluster& cluster,
                                            const StrategyRequest& request) const = 0;
};

}  // namespace contextile
