// The names of the kernels in the compiled module, and the choice of a call's kernel.
#pragma once

#include <cstdint>
#include <string_view>

#include "contextile/extend/kernel.h"
#include "kernel/cuda/mma_backward.h"
#include "kernel/cuda/mma_forward.h"

// Visits every compiled attention kernel: X(name of the number, Number, name of the dims, head dim,
// value dim), smaller dims first, because a call takes the first kernel that holds its own dims.
// Keys own dK and dV in one pass, or in two.
#define CONTEXTILE_ONE_PASS_KERNELS(X)      \
  X(bf16, Number::kBf16, 64, 64, 64)        \
  X(bf16, Number::kBf16, 96, 96, 96)        \
  X(bf16, Number::kBf16, 128, 128, 128)     \
  X(bf16, Number::kBf16, 192_128, 192, 128) \
  X(f16, Number::kF16, 64, 64, 64)          \
  X(f16, Number::kF16, 96, 96, 96)          \
  X(f16, Number::kF16, 128, 128, 128)       \
  X(f16, Number::kF16, 192_128, 192, 128)
#define CONTEXTILE_TWO_PASS_KERNELS(X)  \
  X(bf16, Number::kBf16, 256, 256, 256) \
  X(f16, Number::kF16, 256, 256, 256)
#define CONTEXTILE_ATTENTION_KERNELS(X) \
  CONTEXTILE_ONE_PASS_KERNELS(X) CONTEXTILE_TWO_PASS_KERNELS(X)

// Visits every pass of backward of given dims: X(name of the gradient, Gradient, the rest as
// above).
#define CONTEXTILE_ONE_PASS_GRADIENTS(X, ...) \
  X(dq, Gradient::kQ, __VA_ARGS__) X(dkv, Gradient::kKAndV, __VA_ARGS__)
#define CONTEXTILE_TWO_PASS_GRADIENTS(X, ...) \
  X(dq, Gradient::kQ, __VA_ARGS__) X(dk, Gradient::kK, __VA_ARGS__) X(dv, Gradient::kV, __VA_ARGS__)

// Visits every row kernel: X(name, type of its argument).
#define CONTEXTILE_ROW_KERNELS(X) \
  X(rows_merge, MergeList)        \
  X(rows_sum, SumList)            \
  X(rows_delta, DeltaList)        \
  X(rows_convert, ConvertList)    \
  X(rows_finish, FinishList)      \
  X(rows_fill, FillList)          \
  X(rows_sink, SinkCall)          \
  X(rows_round, RoundCall)        \
  X(rows_place, PlaceCall)        \
  X(rows_copy, CopyCall)

namespace contextile::cuda {

struct EntryPoint {
  std::string_view name = {};  // empty: there is no kernel
  std::int32_t shared_bytes = 0;
  std::int32_t rows = 0;  // streamed at a time
};

[[nodiscard]] inline bool runs(const KernelParams& params, Dtype dtype, Number number, int dim,
                               int value_dim) {
  return (dtype == Dtype::kBf16) == (number == Number::kBf16) && params.head_dim <= dim &&
         params.value_dim <= value_dim;
}

[[nodiscard]] inline EntryPoint forward_entry(const KernelParams& params, Dtype dtype) {
#define CONTEXTILE_ENTRY(text, number, name, dim, value_dim)                                       \
  if (runs(params, dtype, number, dim, value_dim)) {                                               \
    return {"forward_" #text "_" #name, static_cast<std::int32_t>(kForwardShared<dim, value_dim>), \
            kForwardKeys<dim, value_dim>};                                                         \
  }
  CONTEXTILE_ATTENTION_KERNELS(CONTEXTILE_ENTRY)
#undef CONTEXTILE_ENTRY
  return {};
}

// Returns no entry if other passes write the gradient.
[[nodiscard]] inline EntryPoint backward_entry(const KernelParams& params, Dtype dtype,
                                               Gradient gradient) {
#define CONTEXTILE_PASS(pass, of, text, number, name, dim, value_dim)       \
  if (gradient == (of)) {                                                   \
    return {"backward_" #pass "_" #text "_" #name,                          \
            static_cast<std::int32_t>(kBackwardShared<of, dim, value_dim>), \
            kBackwardRows<of, dim, value_dim>};                             \
  }
#define CONTEXTILE_ONE_PASS(text, number, name, dim, value_dim)                                   \
  if (runs(params, dtype, number, dim, value_dim)) {                                              \
    CONTEXTILE_ONE_PASS_GRADIENTS(CONTEXTILE_PASS, text, number, name, dim, value_dim) return {}; \
  }
#define CONTEXTILE_TWO_PASSES(text, number, name, dim, value_dim)                                 \
  if (runs(params, dtype, number, dim, value_dim)) {                                              \
    CONTEXTILE_TWO_PASS_GRADIENTS(CONTEXTILE_PASS, text, number, name, dim, value_dim) return {}; \
  }
  CONTEXTILE_ONE_PASS_KERNELS(CONTEXTILE_ONE_PASS)
  CONTEXTILE_TWO_PASS_KERNELS(CONTEXTILE_TWO_PASSES)
#undef CONTEXTILE_TWO_PASSES
#undef CONTEXTILE_ONE_PASS
#undef CONTEXTILE_PASS
  return {};
}

}  // namespace contextile::cuda
