// Work on rows between the calls of an attention kernel: merging, summing, rounding, delta.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/extend/kernel.h"
#include "contextile/extend/tensor.h"

namespace contextile {

// What is done to rows between the calls of a kernel, bound by memory: merging, summing, rounding,
// delta. Every implementation gives the same bits (of NaN only that it is one), so that plans run
// by different kernels differ by their attention alone. Tensors of one call have one shape. Calls
// of several threads may run side by side.
class RowOps {
 public:
  virtual ~RowOps() = default;

  // Names the instruction set: "avx512".
  [[nodiscard]] virtual std::string_view name() const = 0;
  // dst := the merge of srcs (at least one) in the listed order, computed in fp64 and rounded once.
  // dst may be among srcs. The merge of two rows is
  //   L = logaddexp(La, Lb),  O = exp(La - L)·Oa + exp(Lb - L)·Ob;
  // empty rows weigh nothing, and a row whose sources are all empty becomes O = 0, L = -inf.
  virtual void merge(const PartialOutput& dst, std::span<const PartialOutput> srcs) const = 0;
  // dst := the sum of srcs (at least one) in the listed order, computed in fp64 and rounded once.
  // fp32; dst may be among srcs.
  virtual void sum(const TensorView& dst, std::span<const TensorView> srcs) const = 0;
  // delta := rowsum(dO ∘ O), summed in fp64.
  virtual void delta(const TensorView& dout_NHD, const TensorView& out_NHD,
                     const RowStats& delta_NH) const = 0;
  // Copies; rounds to nearest even where dst is narrower. dst may be src when the dtypes are the
  // same.
  virtual void convert(const TensorView& dst, const TensorView& src) const = 0;
  // Rounds accumulated outputs once into `out`, the sink logits of these heads applied:
  // L' = logaddexp(L, sink), O·exp(L - L') in fp64. An empty row: O = 0, L' = sink (-inf without).
  // `sink_H` is empty when the layer has none.
  virtual void finish(const PartialOutput& accumulated, std::span<const float> sink_H,
                      const TensorView& out_NHD, const RowStats& lse_NH) const = 0;
  // Every element of every row := value.
  virtual void fill(const TensorView& dst, float value) const;
  // sums_H[h] -= Σ_n exp(sink - L)·delta in fp64, L the final LSE of `tokens` rows: token n in sum
  // n modulo 32, the sums halved until one is left.
  virtual void sink_gradient(std::span<const float> sink_H, const RowStats& lse_NH,
                             const RowStats& delta_NH, std::int64_t tokens,
                             std::span<double> sums_H) const;
  // dst_H := sums_H, rounded.
  virtual void round_sums(std::span<const double> sums_H, std::span<float> dst_H) const;

  // Lists of such calls, in which no call touches what another writes, whatever their shapes: the
  // bits of the calls one after another. Unless overridden they are made so.
  struct Merge {
    PartialOutput dst;
    std::vector<PartialOutput> srcs;
  };
  struct Sum {
    TensorView dst;
    std::vector<TensorView> srcs;
  };
  struct Delta {
    TensorView dout_NHD;
    TensorView out_NHD;
    RowStats delta_NH;
  };
  struct Convert {
    TensorView dst;
    TensorView src;
  };
  struct Finish {
    PartialOutput accumulated;
    TensorView out_NHD;
    RowStats lse_NH;
  };
  struct Fill {
    TensorView dst;
    float value = 0;
  };
  struct SinkRows {
    RowStats lse_NH;
    RowStats delta_NH;
    std::int64_t tokens = 0;
  };
  virtual void merge_all(std::span<const Merge> list) const;
  virtual void sum_all(std::span<const Sum> list) const;
  virtual void delta_all(std::span<const Delta> list) const;
  virtual void convert_all(std::span<const Convert> list) const;
  virtual void finish_all(std::span<const Finish> list, std::span<const float> sink_H) const;
  virtual void fill_all(std::span<const Fill> list) const;
  // sums_H takes the shares in listed order.
  virtual void sink_gradient_all(std::span<const float> sink_H, std::span<const SinkRows> list,
                                 std::span<double> sums_H) const;
};

}  // namespace contextile
