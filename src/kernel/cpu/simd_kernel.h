// The kernel that uses the CPU's vector instructions.
#pragma once

#include <memory>
#include <span>

#include "contextile/extend/kernel.h"
#include "kernel/cpu/row_target.h"
#include "kernel/cpu/task.h"

namespace contextile {

// Returns one kernel for each instruction set that is built in and that this CPU has, fastest first
// for f32 and f16 inputs: "simd:avx512", "simd:avx512_bf16", "simd:amx_bf16" (these two are
// simd:avx512 except for bf16), "simd:avx2", "simd:portable". Stateless.
//
// The kernels do flash attention with queries in lanes. All query heads of a KV head are folded
// into the lanes, and arithmetic inside is fp32 whatever the inputs are. Tiles of one call that
// share a query slot run in one pass: their partial results meet in the accumulators and are merged
// into the slot once. Work is cut by shape alone (panels of rows, blocks of keys), each output row
// has one owner, and sums have a fixed order. So the bits are the same on any number of threads.
// Memory in addition to the tensors: a few MiB per thread and, for backward on many keys, copies of
// dQ of at most 1536 rows per head.
[[nodiscard]] std::span<const AttentionKernel* const> simd_kernels();
// Returns the fastest of them for inputs of a dtype. For bf16 these are tiles, then vectors of bf16
// products if they are faster than products of fp32, otherwise the first kernel.
[[nodiscard]] const AttentionKernel& preferred_simd_kernel(Dtype inputs);

// Runs bf16 inputs on one target, whose products are of bf16, and all others on another. The
// targets must outlive the kernel.
[[nodiscard]] std::unique_ptr<const AttentionKernel> make_mixed_kernel(const SimdTarget& bf16,
                                                                       const SimdTarget& wide,
                                                                       const RowTarget& rows);

}  // namespace contextile
