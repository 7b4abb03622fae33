// The options of a plan: a strategy by name, and those that hold for every strategy. Also the
// report of a search, and micro-batches.
//
//   const StrategyChoice choice = {"auto", {{"steps", "600000"}}};
//   PlanOptions options;
//   options.limits.tokens = 16'384;  // on every device
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "contextile/base.h"
#include "contextile/cluster.h"
#include "contextile/workload.h"

namespace contextile {

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
  bool ran = false;       // false: no search yet, disabled, or the batch did not need this phase
  bool disabled = false;  // by StrategyRequest::disabled_phases
  double seconds = 0;
  std::int32_t candidates = 0;  // plans simulated in this phase
  // Predicted time of the best candidate when the phase ended, forward and backward, of what the
  // search compares (Objective in extend/strategies.h); unset: there is no candidate yet.
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
  // The best plan of another strategy that the search simulated: the strategy's name and its
  // predicted time of attention, forward and backward, µs. Strategies whose lower bound is above
  // the best candidate are not simulated. Empty and unset: none was.
  std::string best_other;
  std::optional<double> best_other_us = {};
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
  // Every device owns a multiple of so many tokens, as FP8 and MXFP8 linear layers and static
  // shapes need. Whatever the strategy, tokens above a multiple get other owners, and attention
  // fetches them. The batch must be a multiple, and its workload must have no home layout.
  std::int64_t tokens_multiple = 1;
  bool equal_tokens = false;  // every device owns as many tokens as any other
  // Time of a token outside attention: the matrix products of one layer, forward, on its device. A
  // device that owns more tokens than others makes them wait, so searches and choices of block
  // sizes weigh it. Unset: a guess, guessed_linear_us_per_token (advanced/model.h).
  std::optional<double> linear_us_per_token = {};
  bool force = false;          // plan also in blocks that check_plan_size refuses (planner.h)
  ProgressHook progress = {};  // receives the progress of a batch or a search; may be empty
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

}  // namespace contextile
