// The plug-in point for context-parallel methods: one pure function from (workload, cluster,
// options) to an arrangement. planner.h names those there are.
#pragma once

#include <cstdint>
#include <functional>
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
  std::vector<std::string> values;  // all there are, of a choice; empty: not a choice
};

// A strategy by name, with options of its own as text; choice_of (extend/strategies.h) makes one from
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
  bool ran = false;  // false: no search yet, or the batch did not call for this phase
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

// What a caller asks of a plan, whatever the strategy. Declared once: the program reads options
// into it, and the planner hands it to strategies as it is.
struct PlanOptions {
  std::optional<std::int64_t> block_size = {};  // tokens; unset: the strategy's own
  std::optional<Dtype> wire = {};               // of partial results; unset: as the original
  bool backward = true;                         // false: forward only (prefill)
  std::uint64_t seed = 0;                       // of strategies that draw
  DeviceLimits limits = {};                     // searches keep to them
  // What a token costs outside attention: matrix products of one layer, forward, on its device; it
  // decides between block sizes. Unset: of a Llama 3 layer as wide as the query heads, at half of
  // the device's peak.
  std::optional<double> linear_us_per_token = {};
  bool force = false;          // plan also in blocks that check_plan_size refuses (planner.h)
  ProgressHook progress = {};  // told how far a batch, or a search, has come; may be empty
};

// The same, asked of one strategy with options of its own.
struct StrategyRequest : PlanOptions {
  std::map<std::string, std::string> options = {};  // key → value; unknown keys are errors
  SearchHook searched = {};  // of strategies with search_phases(); may be empty
};

// How a strategy that leaves no block size open decides what a device computes.
enum class Deciding : std::uint8_t { kByRule, kBySearch };

class Strategy {
 public:
  virtual ~Strategy() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;
  // Source (paper, section) and what it does, one line.
  [[nodiscard]] virtual std::string_view summary() const = 0;
  [[nodiscard]] virtual std::vector<OptionSpec> options() const = 0;

  // What `auto` expects it to take goes by it: a search takes longer where devices are many.
  [[nodiscard]] virtual Deciding deciding() const { return Deciding::kByRule; }

  // The phases of its search, in order, none of them run; empty where the strategy does not search
  // in phases. One that has phases calls StrategyRequest::searched.
  [[nodiscard]] virtual std::vector<SearchPhase> search_phases() const { return {}; }

  // Why this strategy cannot do that, or nothing. Throws InvalidArgument on bad options.
  [[nodiscard]] virtual std::optional<std::string> unsupported(
      const Workload& workload, const Cluster& cluster, const StrategyRequest& request) const = 0;

  // Token block sizes worth trying where the request leaves the size open, best guess first; empty:
  // nothing is left open. plan_batch tries them and keeps the plan that is predicted fastest,
  // linear layers included.
  // Throws InvalidArgument on bad options.
  [[nodiscard]] virtual std::vector<std::int64_t> block_sizes(const StrategyRequest&) const {
    return {};
  }

  // Options worth trying for this workload on this cluster, best guess first; the defaults are the
  // first of them. Of the request all but its options count. Searches take their candidates from
  // here, at every block size that a variant leaves open; some may be unsupported().
  [[nodiscard]] virtual std::vector<std::map<std::string, std::string>> variants(
      const Workload&, const Cluster&, const StrategyRequest&) const {
    return {{}};
  }

  // With the first of block_sizes() where the request leaves the size open. Deterministic: same
  // arguments, same arrangement, on any number of threads. Throws InvalidArgument on bad options,
  // and with the reason when unsupported().
  [[nodiscard]] virtual Arrangement arrange(const Workload& workload, const Cluster& cluster,
                                            const StrategyRequest& request) const = 0;
};

}  // namespace contextile
