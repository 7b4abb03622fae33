// The device that tests judge: GPU number $CONTEXTILE_TEST_GPU of this machine with the kernels
// that open_gpu finds, or a CPU that works in an order of its own (host_driver.h).
#pragma once

#include <span>

#include "contextile/extend/kernel.h"
#include "gpu/driver.h"

namespace contextile {

// Throws like open_gpu.
[[nodiscard]] cuda::Driver& device_under_test();
// Its kernels, on tensors of this process: cuda:mma first, and cuda:wgmma if the device has it.
[[nodiscard]] std::span<const AttentionKernel* const> staged_kernels();

}  // namespace contextile
