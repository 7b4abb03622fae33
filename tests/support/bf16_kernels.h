// Kernels that round the weights of bf16 inputs to bf16, on any machine.
#pragma once

#include <span>

#include "contextile/extend/kernel.h"

namespace contextile {

// "simd:emulated_pairs" (the code of simd:avx512_bf16) and "simd:emulated_tiles" (of simd:amx_bf16)
// with the instructions written as loops; other inputs as simd:portable.
[[nodiscard]] std::span<const AttentionKernel* const> emulated_bf16_kernels();

}  // namespace contextile
