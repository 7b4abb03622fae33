// Work on rows between the calls of an attention kernel: merging, summing, rounding, delta.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/extend/kernel.h"
#include "contextile/tensor.h"

namespace contextile {

// The work on rows between the calls of a kernel, which is bound by memory: merging, summing,
// rounding, delta. Every implementation gives the same bits (for a NaN, only that it is NaN), so
// plans that different kernels run differ only in their attention. The tensors of one call have one
// shape. Several threads may call at the same time.
class RowOps {
 public:
  virtual ~RowOps() = default;

  // Names the instruction set, for example "avx512".
  [[nodiscard]] virtual std::string_view name() const = 0;
  // Sets dst to the merge of srcs (at least one) in the listed order, computed in fp64 and rounded
  // once. dst may be among srcs. The merge of two rows is
  //   L = logaddexp(La, Lb),  O = exp(La - L)·Oa + exp(Lb - L)·Ob;
  // empty rows weigh nothing, and a row whose sources are all empty becomes O = 0, L = -inf.
  virtual void merge(const PartialOutput& dst, std::span<const PartialOutput> srcs) const = 0;
  // Sets dst to the sum of srcs (at least one) in the listed order, computed in fp64 and rounded
  // once to fp32. dst may be among srcs.
  virtual void sum(const TensorView& dst, std::span<const TensorView> srcs) const = 0;
  // Sets delta to rowsum(dO ∘ O), summed in fp64.
  virtual void delta(const TensorView& dout_NHD, const TensorView& out_NHD,
                     const RowStats& delta_NH) const = 0;
  // Copies src to dst, rounded to nearest even if dst is narrower. dst may be src if the dtypes are
  // the same.
  virtual void convert(const TensorView& dst, const TensorView& src) const = 0;
  // Rounds accumulated outputs once into `out` and applies the sink logits of these heads: L' =
  // logaddexp(L, sink), O·exp(L - L') in fp64. An empty row gets O = 0, L' = sink (-inf without
  // sinks). `sink_H` is empty if the layer has none.
  virtual void finish(const PartialOutput& accumulated, std::span<const float> sink_H,
                      const TensorView& out_NHD, const RowStats& lse_NH) const = 0;
  // Sets every element of every row to `value`.
  virtual void fill(const TensorView& dst, float value) const;
  // Subtracts Σ_n exp(sink - L)·delta from sums_H[h] in fp64, where L is the final LSE of `tokens`
  // rows. Token n is added to sum n modulo 32; then the number of sums is halved until one is left.
  virtual void sink_gradient(std::span<const float> sink_H, const RowStats& lse_NH,
                             const RowStats& delta_NH, std::int64_t tokens,
                             std::span<double> sums_H) const;
  // Sets dst_H to sums_H, rounded.
  virtual void round_sums(std::span<const double> sums_H, std::span<float> dst_H) const;

  // Lists of such calls, of whatever shapes, in which no call touches what another writes. The bits
  // are those of the calls one after another, which is how the list is done unless overridden.
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
  // Adds the shares to sums_H in the listed order.
  virtual void sink_gradient_all(std::span<const float> sink_H, std::span<const SinkRows> list,
                                 std::span<double> sums_H) const;
};

}  // namespace contextile
