// Row operations as code compiled for one instruction set, a table: see RowOps.
#pragma once

#include <cstdint>
#include <span>

#include "contextile/extend/kernel.h"

namespace contextile {

// Memory for merges and sums of `sources` arrays. The caller's, because code of one instruction set
// must not instantiate what other files share.
struct RowWorkspace {
  static constexpr std::int64_t kRows = 32;  // whose weights are found together
  double* weights = nullptr;                 // [sources][kRows]
  double* row_weights = nullptr;             // [sources]
  const float** rows = nullptr;              // [sources]
};

// One instruction set. Everything as the functions of RowOps.
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

// Null where the compiler or the processor's family has no such instructions; whether this CPU has
// them is for the caller to ask. There as long as the kernel of the same name is (simd/task.h).
[[nodiscard]] const RowTarget* row_target_avx512();
[[nodiscard]] const RowTarget* row_target_avx2();
[[nodiscard]] const RowTarget* row_target_portable();  // never null

}  // namespace contextile
