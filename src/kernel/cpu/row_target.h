// A table of the row operations compiled for one instruction set; see RowOps.
#pragma once

#include <cstdint>
#include <span>

#include "contextile/extend/kernel.h"

namespace contextile {

// Memory for merges and sums of `sources` arrays. The caller allocates it, because code of one
// instruction set must not instantiate templates that other files share.
struct RowWorkspace {
  static constexpr std::int64_t kRows = 32;  // rows whose weights are computed together
  double* weights = nullptr;                 // [sources][kRows]
  double* row_weights = nullptr;             // [sources]
  const float** rows = nullptr;              // [sources]
};

// One instruction set. The functions do the same as those of RowOps.
struct RowTarget {
  const char* name = nullptr;  // "avx512"
  void (*merge)(const PartialOutput& dst, std::span<const PartialOutput> srcs,
                const RowWorkspace& workspace) = nullptr;
  void (*sum)(const TensorView& dst, std::span<const TensorView> srcs,
              const RowWorkspace& workspace) = nullptr;
  void (*delta)(const TensorView& dout_NHD, const TensorView& out_NHD,
                const RowStats& delta_NH) = nullptr;
  void (*convert)(const TensorView& dst, const TensorView& src) = nullptr;
  void (*finish)(const PartialOutput& accumulated, std::span<const float> sink_H,
                 const TensorView& out_NHD, const RowStats& lse_NH) = nullptr;
};

// Null if the compiler or the processor's family has no such instructions. The caller must check
// whether this CPU has them. A table is there if the kernel of the same name is (cpu/task.h).
[[nodiscard]] const RowTarget* row_target_avx512();
[[nodiscard]] const RowTarget* row_target_avx2();
[[nodiscard]] const RowTarget* row_target_portable();  // never null

}  // namespace contextile
