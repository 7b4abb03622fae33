// The tile program of the CUDA kernels on the CPU.
#pragma once

#include "contextile/extend/kernel.h"

namespace contextile {

// "cuda:host": runs every CTA of the launches that the device would get, by HostCta. It takes the
// same inputs: bf16 and f16, head dims that are multiples of 8 up to 256, rows at multiples of 16
// bytes.
[[nodiscard]] const AttentionKernel& cuda_host_kernel();
// "cuda:host_wgmma": the same for the program for wgmma, by HostGroup.
[[nodiscard]] const AttentionKernel& wgmma_host_kernel();

}  // namespace contextile
