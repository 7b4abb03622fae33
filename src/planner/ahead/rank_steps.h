// How far the ranks of a run are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/advanced/store.h"
#include "planner/ahead/lookahead_keys.h"

namespace contextile {

// The progress of every rank, as recorded in the store.
class RankSteps {
 public:
  // first_step: where ranks are that have no entry in the store.
  RankSteps(std::int32_t num_ranks, std::int64_t first_step);

  void refresh_all(Store& store, const LookaheadKeys& keys);
  // The same if ranks only go forward: it reads the last rank again until that has not moved.
  void refresh_slowest(Store& store, const LookaheadKeys& keys);

  [[nodiscard]] std::int64_t slowest() const { return slowest_; }
  [[nodiscard]] bool needs(std::size_t rank, std::int64_t step) const {
    return next_[rank] <= step;
  }

 private:
  [[nodiscard]] std::int64_t next_of(std::size_t rank, Store& store,
                                     const LookaheadKeys& keys) const;

  std::vector<std::int64_t> next_;  // by rank
  const std::int64_t first_step_;
  std::int64_t slowest_;
};

}  // namespace contextile
