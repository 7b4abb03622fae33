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
#include "contextile/workload.h"

namespace contextile {

// One key of `--strategy name:key=value`.
struct OptionSpec {
  std::string name;
  std::string default_value;
  std::string help;                 // meaning, unit, allowed values
  std::vector<std::string> values;  // all values of a choice; empty: not a choice
};

// A strategy by name, with its own options as text; choice_of (extend/strategies.h) makes one from
// typed options. Names and keys are checked when used.
struct StrategyChoice {
  std::string name;
  std::map<std::string, std::string> options = {};
};

// One phase of a search for a plan: its work, its share of the limits and what it found.
struct SearchPhase {
  std::string name;
  std::string work;  // one line
  // Share of the search's limits (steps, milliseconds) that may be spent when the phase ends.
  double budget_share = 0;
  bool ran = false;  // false: no search yet, or the batch did not need this phase
  double seconds = 0;
  std::int32_t candidates = 0;  // plans simulated in this phase
  // Predicted time of the best candidate when the phase ended, forward and backward; unset: there
  // is no candidate yet.
  std::optional<double> best_us = {};
  bool improved = false;  // the phase found a better candidate than the phases before it
};

// A search for a plan, phase by phase, and the candidate that won.
struct SearchReport {
  std::vector<SearchPhase> phases;  // in the order in which they run
  double prepare_s = 0;             // before the first phase: tiles priced, strategies listed
  double finish_s = 0;              // after the last: the winner arranged, its bottleneck found
  std::string winner;               // "placement" or the name of another strategy
  std::map<std::string, std::string> winner_options;
  std::string found_in;  // the phase that found the winner
};
// Called once at the end of a search. An exception from it ends the call that searched.
using SearchHook = std::function<void(const SearchReport& report)>;

// Any number of roundings of a partial result (PlanOptions::max_roundings).
inline constexpr std::int32_t kAnyRoundings = std::numeric_limits<std::int32_t>::max();

// The options of a plan, whatever the strategy. They are declared once: the program reads options
// into them, and the planner passes them to strategies unchanged.
struct PlanOptions {
  std::optional<std::int64_t> block_size = {};  // tokens; unset: the strategy's own
  std::optional<Dtype> wire = {};  // of partial results; unset: that of the original method
  // How often a partial result may be rounded on its way from rank to rank. It counts if `wire` is
  // unset and the original sends partial results in the dtype of the activations. If a plan would
  // round one more often, its partial results travel in f32. Errors grow with the square root of
  // the roundings. At four they are about twice those of one rounding, which a finished result has
  // anyway.
  std::int32_t max_roundings = 4;
  bool backward = true;      // false: forward only (prefill)
  std::uint64_t seed = 0;    // of strategies that draw random numbers
  DeviceLimits limits = {};  // searches keep to them
  // Time of a token outside attention: the matrix products of one layer, forward, on its device. It
  // decides between block sizes. Unset: that of a Llama 3 layer as wide as the query heads, at half
  // of the device's peak.
  std::optional<double> linear_us_per_token = {};
  bool force = false;          // plan also in blocks that check_plan_size refuses (planner.h)
  ProgressHook progress = {};  // receives the progress of a batch or a search; may be empty
};

// The options of a plan by one strategy, with the strategy's own options.
struct StrategyRequest : PlanOptions {
  std::map<std::string, std::string> options = {};  // key → value; unknown keys are errors
  SearchHook searched = {};  // of strategies with search_phases(); may be empty
};

// The sequences of one forward and backward of the model, packed, and its group: the ranks first …
// first + size - 1.
struct GroupBatch {
  std::int32_t first = 0;
  std::int32_t size = 1;
  std::vector<std::int32_t> sequences;  // indices into Workload::sequences, in ranks' order

  friend bool operator==(const GroupBatch&, const GroupBatch&) = default;
};
// The work between two barriers. A rank takes part in its micro-batches one after another, in this
// order; micro-batches of different ranks run at the same time.
using ScheduleRound = std::vector<GroupBatch>;

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
  // phases. A strategy that has phases calls StrategyRequest::searched.
  [[nodiscard]] virtual std::vector<SearchPhase> search_phases() const { return {}; }

  // Returns why this strategy cannot serve the request, or nothing. Throws InvalidArgument on bad
  // options.
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
  // InvalidArgument on bad options, and with the reason when unsupported().
  [[nodiscard]] virtual Arrangement arrange(const Workload& workload, const Cluster& cluster,
                                            const StrategyRequest& request) const = 0;
};

}  // namespace contextile
