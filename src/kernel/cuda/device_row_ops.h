// Row operations on a rank's compute stream.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "contextile/extend/kernel.h"
#include "gpu/driver.h"
#include "kernel/row_ops.h"

namespace contextile::cuda {

// Runs a list as one launch for about as many calls as fit into 4 KB of parameters (docs/gpu.md). A
// single call is a list of one; nothing waits. Tensors, sinks and sums are in device memory,
// elements at multiples of their size. Rows to merge and to sum have up to kMaxRowDim elements
// (otherwise InvalidArgument).
class DeviceRowOps : public RowOps {
 public:
  explicit DeviceRowOps(const RankStreams& streams) : streams_(streams) {}

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
  void merge_all(std::span<const Merge> list) const override;
  void sum_all(std::span<const Sum> list) const override;
  void delta_all(std::span<const Delta> list) const override;
  void convert_all(std::span<const Convert> list) const override;
  void finish_all(std::span<const Finish> list, std::span<const float> sink_H) const override;
  void fill_all(std::span<const Fill> list) const override;
  void sink_gradient_all(std::span<const float> sink_H, std::span<const SinkRows> list,
                         std::span<double> sums_H) const override;

 private:
  const RankStreams& streams_;
};

}  // namespace contextile::cuda
