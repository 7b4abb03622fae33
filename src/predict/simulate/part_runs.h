// Runs of parts of query blocks: the pairs that the pieces of one attention call with the same
// queries compute together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// Pieces whose queries are a part of their block's.
struct PartRun {
  std::size_t run = 0;  // of the whole block
  Range q;              // of the tokens of the query block
  double computed_pairs = 0;

  PartRun(std::size_t run, Range q, double computed_pairs)
      : run(run), q(q), computed_pairs(computed_pairs) {}
};

// Adds up pieces as they come: a call of composite blocks has far more pieces than runs.
class PartRuns {
 public:
  // O(1) on average. Do not call it between `sorted` and `clear`.
  void add(std::size_t run, Range q, double computed_pairs) {
    if (ascending_ && !runs_.empty()) {
      PartRun& last = runs_.back();
      if (last.run == run && last.q == q) {
        last.computed_pairs += computed_pairs;
        return;
      }
      if (last.run == run && last.q < q) {
        runs_.emplace_back(run, q, computed_pairs);
        return;
      }
    } else if (next_ < runs_.size() && runs_[next_].run == run && runs_[next_].q == q) {
      // The tiles of a query block list its ranges in the same order, one tile after another.
      runs_[next_++].computed_pairs += computed_pairs;
      return;
    }
    add_elsewhere(run, q, computed_pairs);
  }
  // The runs added since `clear`, by run and queries, each once.
  [[nodiscard]] std::span<const PartRun> sorted();
  void clear();

 private:
  struct Slot {
    std::uint32_t call = 0;  // the slot is empty in all others
    std::uint32_t index = 0;
  };

  void add_elsewhere(std::size_t run, Range q, double computed_pairs);  // not to the last run
  void add_in_any_order(std::size_t run, Range q, double computed_pairs);
  [[nodiscard]] Slot& slot_of(std::size_t run, Range q);
  void fill_slots(std::size_t num_slots);

  std::vector<PartRun> runs_;
  std::size_t next_ = 0;     // behind the run found last, unless runs came in order
  bool ascending_ = true;    // runs came in order, so slots_ has none of them
  std::vector<Slot> slots_;  // a hash table of indices into runs_
  std::uint32_t call_ = 1;
};

}  // namespace contextile
