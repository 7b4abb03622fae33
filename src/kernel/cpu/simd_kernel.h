// The kernel of the CPU's vector instructions.
#pragma once

#include <memory>
#include <span>

#include "contextile/extend/kernel.h"
#include "kernel/cpu/row_target.h"
#include "kernel/cpu/task.h"

namespace contextile {

// One kernel for each instruction set that is built in and that this CPU has, fastest first for f32
// and f16 inputs: "simd:avx512", "simd:avx512_bf16", "simd:amx_bf16" (these two are simd:avx512 but
// for bf16), "simd:avx2", "simd:portable". Stateless.
//
// Flash attention with queries in lanes, all query heads of a KV head folded into the lanes; fp32
// inside whatever the inputs are. Tiles of one call that share a query slot run in one pass: their
// partial results meet in the accumulators and are merged into the slot once. Work is cut by shape
// alone (panels of rows, blocks of keys), each output row has one owner, and sums have a fixed
// order: the same bits on any number of threads. Memory beside the tensors: a few MiB a thread,
// and backward on many keys copies of dQ of at most 1536 rows a head.
[[nodiscard]] std::span<const AttentionKernel* const> simd_kernels();
// The fastest of them for inputs of a dtype: for bf16 tiles, then vectors of bf16 products where
// these are faster than products of fp32, else the first.
[[nodiscard]] const AttentionKernel& preferred_simd_kernel(Dtype inputs);

// bf16 inputs by one target, whose products are of bf16, and all others by another. The targets
// outlive the kernel.
[[nodiscard]] std::unique_ptr<const AttentionKernel> make_mixed_kernel(const SimdTarget& bf16,
                                                                       const SimdTarget& wide,
                                                                       const RowTarget& rows);

}  // namespace contextile
