// The kernel of the CPU's vector instructions.
#pragma once

#include <span>

#include "contextile/kernel.h"

namespace contextile {

// One kernel for each instruction set that is built in and that this CPU has, fastest first:
// "simd:amx_bf16", "simd:avx512", "simd:avx512_bf16" (before simd:avx512 where its products are the
// faster ones), "simd:avx2", "simd:portable". Stateless.
//
// Flash attention with queries in lanes, all query heads of a KV head folded into the lanes; fp32
// inside whatever the inputs are. Tiles of one call that share a query slot run in one pass: their
// partial results meet in the accumulators and are merged into the slot once. Work is cut by shape
// alone (panels of rows, blocks of keys), each output row has one owner, and sums have a fixed
// order: the same bits on any number of threads. Memory beside the tensors: a few MiB a thread,
// and backward on many keys copies of dQ of at most 1536 rows a head.
[[nodiscard]] std::span<const AttentionKernel* const> simd_kernels();

// What a kernel's rounding of weights and dS to the dtype of its products adds to the error of out,
// relative to the largest output: 2^-7 for bf16 on kernels that multiply bf16, else 0. Gradients
// have it twice.
[[nodiscard]] double weight_rounding(const AttentionKernel& kernel, Dtype dtype);

}  // namespace contextile
