// Work on rows that is bound by memory: merging, adding, rounding, delta. Vectorised for the
// instruction set of the machine; every set gives the same bits.
#pragma once

#include <cstdint>
#include <span>

#include "contextile/kernel.h"
#include "kernel/merge.h"

namespace contextile {

// For merges and sums of `sources` arrays.
struct RowWorkspace {
  static constexpr std::int64_t kRows = 32;  // whose weights are found together
  double* weights = nullptr;                 // [sources][kRows]
  double* row_weights = nullptr;             // [sources]
  const float** rows = nullptr;              // [sources]
};

// A row is dim elements; rows of one call have one dim. Everything as in merge.h, epilogue.h and
// tensor.h, which call these.
struct RowOps {
  const char* name = nullptr;  // "avx512"
  void (*merge)(const PartialOutput& dst, std::span<const PartialOutput> srcs,
                const RowWorkspace& workspace) = nullptr;
  void (*sum)(const TensorView& dst, std::span<const TensorView> srcs,
              const RowWorkspace& workspace) = nullptr;
  void (*delta)(const TensorView& dout_NHD, const TensorView& out_NHD,
                const RowStats& delta_NH) = nullptr;
  // Rounds to nearest even. dst may be src when the dtypes are the same.
  void (*convert)(const TensorView& dst, const TensorView& src) = nullptr;
  // Outputs with an LSE of -inf become 0 and are not read, whatever stands there; the others are
  // multiplied in fp64 with exp(lse - final LSE) if there is a sink. See finish_output.
  void (*finish)(const PartialOutput& accumulated, std::span<const float> sink_H,
                 const TensorView& out_NHD, const RowStats& lse_NH) = nullptr;
};

// Null where the compiler or the processor's family has no such instructions.
[[nodiscard]] const RowOps* row_ops_avx512();
[[nodiscard]] const RowOps* row_ops_avx2();
[[nodiscard]] const RowOps* row_ops_portable();

// The best of this machine.
[[nodiscard]] const RowOps& row_ops();

}  // namespace contextile
