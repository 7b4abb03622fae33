// The terms of a call of a SIMD kernel in the form that its tasks read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/extend/kernel.h"
#include "kernel/cpu/task.h"

namespace contextile {

class CallTerms {
 public:
  explicit CallTerms(const KernelParams& params);

  // Null if the call has none.
  [[nodiscard]] const TaskTerms* get() const { return has_any_ ? &terms_ : nullptr; }

 private:
  bool has_any_;
  TaskTerms terms_;
  std::vector<float> slopes_log2_;
  std::vector<float> by_offset_log2_;
};

// The gradients of a table by offset: one array for each task of a KV head's share of keys, so that
// tasks run at the same time and the sum has a fixed order.
class OffsetShares {
 public:
  // There are none if the call has no gradient of a table.
  OffsetShares(const KernelParams& params, std::size_t num_tasks);

  // Returns the array of a task: zeros, [query heads of the KV head][offsets]; null: none.
  [[nodiscard]] double* of(std::size_t task);
  // Adds all arrays, of `num_shares` tasks per KV head, to the gradient of the table.
  void add_to_table(std::int32_t first_head, std::size_t num_shares) const;

 private:
  const KernelParams& params_;
  std::size_t task_cells_ = 0;
  std::vector<double> sums_;
};

}  // namespace contextile
