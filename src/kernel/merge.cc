#include "kernel/merge.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "kernel/row_ops.h"

namespace contextile {

double logaddexp(double a, double b) {
  const double high = std::max(a, b);
  const double low = std::min(a, b);
  if (low == -std::numeric_limits<double>::infinity()) return high;
  return high + std::log1p(std::exp(low - high));
}

namespace {

// Memory of a RowWorkspace.
class RowMemory {
 public:
  explicit RowMemory(std::size_t sources)
      : weights_(sources * RowWorkspace::kRows), row_weights_(sources), rows_(sources) {}
  [[nodiscard]] RowWorkspace workspace() {
    return {weights_.data(), row_weights_.data(), rows_.data()};
  }

 private:
  std::vector<double> weights_;
  std::vector<double> row_weights_;
  std::vector<const float*> rows_;
};

}  // namespace

void merge_outputs(const PartialOutput& dst, std::span<const PartialOutput> srcs) {
  RowMemory memory(srcs.size());
  row_ops().merge(dst, srcs, memory.workspace());
}

void sum_tensors(const TensorView& dst, std::span<const TensorView> srcs) {
  RowMemory memory(srcs.size());
  row_ops().sum(dst, srcs, memory.workspace());
}

}  // namespace contextile
