// Every other strategy as a candidate of a search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "contextile/extend/strategies.h"
#include "contextile/extend/strategy.h"
#include "planner/auto/search_state.h"

namespace contextile {

class OtherStrategies {
 public:
  // Collects all of them with every option they find worth trying (Strategy::variants), from the
  // newest strategy to the oldest, defaults first, at every block size that one leaves open. Empty
  // if only our own placements are candidates.
  OtherStrategies(SearchState& state, Candidates which);

  // Drafts the strategies that decide by rule and simulates those with the least lower bounds.
  // Drafts spend no more than the first share of the limits, and all of it no more than the second.
  void try_likely(double draft_share, double share);
  // Tries those that leave no block size open: most are made in a millisecond.
  void try_quick(double share) { try_all(quick_, share); }
  // Whatever the limits say, arranges the cheapest of those, and more if they take next to nothing.
  // Simulates the one with the least lower bound, or more until one keeps to the limits on tokens
  // and memory.
  void try_any();
  // Tries the others, which partition.
  void try_partitioning(double share) { try_all(partitioning_, share); }

 private:
  struct Other {
    StrategyChoice choice;
    std::optional<std::int64_t> block_size;
    std::int64_t arranging_steps = 0;
    // Lower bound on the cost of its plans; unset: it has not been arranged yet.
    std::optional<double> least_cost_us = {};
    bool is_done = false;
  };
  // An arrangement with a lower bound on the cost of every plan of it. Drafts that cannot win are
  // not simulated.
  struct Draft {
    double least_cost_us = kNever;
    std::size_t index = 0;
    Arrangement arrangement;
  };

  // Adds the strategy at every block size that it leaves open, if it supports the workload.
  void add(const Strategy& strategy, const StrategyChoice& choice);
  // Drafts as many as fit into that share of the limits and simulates those that may win. Removes
  // them from the list.
  void try_all(std::vector<Other>& others, double share);
  // The same for one round, whose drafts are paid for. Returns those that may win but did not fit.
  [[nodiscard]] std::vector<Other> try_round(const std::vector<Other>& paid, double share);
  // Drafts those of quick_ and returns them, or the best of them, least bound first.
  [[nodiscard]] std::vector<Draft> draft_quick(const std::vector<std::size_t>& of_quick,
                                               std::optional<std::size_t> most = {});
  [[nodiscard]] Draft draft(const Other& other) const;
  // Counts a simulated candidate and keeps it if it is the best.
  void keep_if_best(PlanCandidate candidate);
  [[nodiscard]] PlanCandidate simulated(const Other& other, Arrangement arrangement) const;
  [[nodiscard]] double least_cost_us(const Arrangement& arrangement) const;
  [[nodiscard]] bool is_hopeless(double least_cost_us) const {
    return least_cost_us >= state_.best.cost_us;
  }
  // Steps of simulating an arrangement that is there.
  [[nodiscard]] std::int64_t steps_of_simulating_only(const Arrangement& arrangement) const;

  SearchState& state_;
  std::vector<Other> quick_;
  std::vector<Other> partitioning_;
};

}  // namespace contextile
