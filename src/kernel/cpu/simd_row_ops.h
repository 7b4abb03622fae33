// Row operations that use the CPU's vector instructions.
#pragma once

#include "contextile/extend/kernel.h"
#include "kernel/cpu/row_target.h"
#include "kernel/row_ops.h"

namespace contextile {

// The operations of one instruction set, which this CPU must have; `target` must outlive them.
class SimdRowOps : public RowOps {
 public:
  explicit SimdRowOps(const RowTarget& target) : target_(target) {}

  [[nodiscard]] std::string_view name() const override { return target_.name; }
  void merge(const PartialOutput& dst, std::span<const PartialOutput> srcs) const override;
  void sum(const TensorView& dst, std::span<const TensorView> srcs) const override;
  void delta(const TensorView& dout_NHD, const TensorView& out_NHD,
             const RowStats& delta_NH) const override;
  void convert(const TensorView& dst, const TensorView& src) const override;
  void finish(const PartialOutput& accumulated, std::span<const float> sink_H,
              const TensorView& out_NHD, const RowStats& lse_NH) const override;

 private:
  const RowTarget& target_;
};

}  // namespace contextile
