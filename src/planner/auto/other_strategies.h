// Every other strategy as a candidate of a search.
#pragma once

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

  // Tries the strategies that decide by rule whose arrangements have the least lower bounds.
  // Arranging takes no more than the first share of the limits.
  void try_likely(double share_of_arranging, double share);
  // Tries those that leave no block size open: most are made in a millisecond.
  void try_quick(double share) { try_all(quick_, share); }
  // Tries the others, which partition.
  void try_partitioning(double share) { try_all(partitioning_, share); }

 private:
  struct Other {
    StrategyChoice choice;
    std::optional<std::int64_t> block_size;
    std::int64_t steps = 0;  // its approximate cost
    bool is_done = false;
  };

  // Adds the strategy at every block size that it leaves open, if it supports the workload.
  void add(const Strategy& strategy, const StrategyChoice& choice);
  // Tries in parallel as many as end in that share of the limits; empties the list if any do.
  void try_all(std::vector<Other>& others, double share);
  [[nodiscard]] Arrangement arranged(const Other& other) const;
  // Has no name if it is known without a simulation to be slower than the best so far.
  [[nodiscard]] PlanCandidate candidate_of(const Other& other, Arrangement arrangement,
                                           double least_cost_us) const;
  // A lower bound on the cost of every plan of the arrangement.
  [[nodiscard]] double least_cost_us(const Arrangement& arrangement) const;

  SearchState& state_;
  std::vector<Other> quick_;
  std::vector<Other> partitioning_;
};

}  // namespace contextile
