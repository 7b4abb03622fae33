#include "kernel/cpu/simd_row_ops.h"

#include <cstddef>
#include <vector>

namespace contextile {
namespace {

// Owns the memory that a RowWorkspace points to.
class SourceRows {
 public:
  explicit SourceRows(std::size_t sources)
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

void SimdRowOps::merge(const PartialOutput& dst, std::span<const PartialOutput> srcs) const {
  SourceRows memory(srcs.size());
  target_.merge(dst, srcs, memory.workspace());
}

void SimdRowOps::sum(const TensorView& dst, std::span<const TensorView> srcs) const {
  SourceRows memory(srcs.size());
  target_.sum(dst, srcs, memory.workspace());
}

void SimdRowOps::delta(const TensorView& dout_NHD, const TensorView& out_NHD,
                       const RowStats& delta_NH) const {
  target_.delta(dout_NHD, out_NHD, delta_NH);
}

void SimdRowOps::convert(const TensorView& dst, const TensorView& src) const {
  target_.convert(dst, src);
}

void SimdRowOps::finish(const PartialOutput& accumulated, std::span<const float> sink_H,
                        const TensorView& out_NHD, const RowStats& lse_NH) const {
  target_.finish(accumulated, sink_H, out_NHD, lse_NH);
}

}  // namespace contextile
