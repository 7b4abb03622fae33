// The names of the kernels in the compiled module, and which of them a call takes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "contextile/kernel.h"
#include "kernel/cuda/backward.h"
#include "kernel/cuda/forward.h"

// Visits every compiled attention kernel: X(name of the number, Number, head dim). Smaller head
// dims run in the next larger one.
#define CONTEXTILE_ATTENTION_KERNELS(X) \
  X(bf16, Number::kBf16, 64)            \
  X(bf16, Number::kBf16, 128)           \
  X(f16, Number::kF16, 64)              \
  X(f16, Number::kF16, 128)

// Visits every row kernel: X(name, type of its argument).
#define CONTEXTILE_ROW_KERNELS(X) \
  X(rows_merge, MergeCall)        \
  X(rows_sum, SumCall)            \
  X(rows_delta, DeltaCall)        \
  X(rows_convert, ConvertCall)    \
  X(rows_finish, FinishCall)      \
  X(rows_fill, FillCall)          \
  X(rows_sink, SinkCall)          \
  X(rows_round, RoundCall)

namespace contextile::cuda {

struct EntryPoint {
  std::string_view name;
  std::int32_t shared_bytes = 0;
};

[[nodiscard]] inline bool runs(const KernelParams& params, Dtype dtype, Number number, int dim) {
  const std::int32_t needed = std::max(params.head_dim, params.value_dim);
  return (dtype == Dtype::kBf16) == (number == Number::kBf16) && (needed <= 64 ? 64 : 128) == dim;
}

[[nodiscard]] inline EntryPoint forward_entry(const KernelParams& params, Dtype dtype) {
#define CONTEXTILE_ENTRY(text, number, dim) \
  if (runs(params, dtype, number, dim))     \
    return {"forward_" #text "_" #dim, static_cast<std::int32_t>(kForwardShared<dim>)};
  CONTEXTILE_ATTENTION_KERNELS(CONTEXTILE_ENTRY)
#undef CONTEXTILE_ENTRY
  return {};
}

[[nodiscard]] inline EntryPoint backward_entry(const KernelParams& params, Dtype dtype,
                                               bool keys_own) {
#define CONTEXTILE_ENTRY(text, number, dim)                                            \
  if (runs(params, dtype, number, dim)) {                                              \
    return {keys_own ? "backward_dkv_" #text "_" #dim : "backward_dq_" #text "_" #dim, \
            static_cast<std::int32_t>(kBackwardShared<dim>)};                          \
  }
  CONTEXTILE_ATTENTION_KERNELS(CONTEXTILE_ENTRY)
#undef CONTEXTILE_ENTRY
  return {};
}

}  // namespace contextile::cuda
