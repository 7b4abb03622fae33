// A device's kernel on tensors of this process: every call copies them there and back. The tests of
// a CPU's kernels can thus test a device's.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "contextile/extend/kernel.h"
#include "gpu/driver.h"
#include "kernel/cuda/device_kernel.h"
#include "kernel/row_ops.h"

namespace contextile {

class StagedRows : public RowOps {
 public:
  StagedRows(const cuda::RankStreams& streams, const RowOps& rows)
      : streams_(streams), rows_(rows) {}

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  void merge(const PartialOutput& dst, std::span<const PartialOutput> srcs) const override;
  void sum(const TensorView& dst, std::span<const TensorView> srcs) const override;
  void delta(const TensorView& dout_NHD, const TensorView& out_NHD,
             const RowStats& delta_NH) const override;
  void convert(const TensorView& dst, const TensorView& src) const override;
  void finish(const PartialOutput& accumulated, std::span<const float> sink_H,
              const TensorView& out_NHD, const RowStats& lse_NH) const override;
  void fill(const TensorView& dst, float value) const override;
  void sink_gradient(std::span<const float> sink_H, const RowStats& lse_NH,
                     const RowStats& delta_NH, std::int64_t tokens,
                     std::span<double> sums_H) const override;
  void round_sums(std::span<const double> sums_H, std::span<float> dst_H) const override;

 private:
  const cuda::RankStreams& streams_;
  const RowOps& rows_;
};

class StagedKernel : public AttentionKernel {
 public:
  // The driver, which has the program's module, must outlive it. Calls come one after another.
  StagedKernel(cuda::Driver& driver, cuda::Program program)
      : streams_(driver), inner_(streams_, program), rows_(streams_, inner_.row_ops()) {}

  [[nodiscard]] std::string_view name() const override { return inner_.name(); }
  [[nodiscard]] Dtype weight_dtype(Dtype inputs) const override {
    return inner_.weight_dtype(inputs);
  }
  void forward(const KernelParams& params, std::span<const ForwardTile> tiles) const override;
  void backward(const KernelParams& params, std::span<const BackwardTile> tiles) const override;
  [[nodiscard]] const RowOps& row_ops() const override { return rows_; }

 private:
  cuda::RankStreams streams_;
  cuda::DeviceKernel inner_;
  StagedRows rows_;
};

}  // namespace contextile
