// The device that tests judge: GPU number $CONTEXTILE_TEST_GPU of this machine with the kernels
// that open_gpu finds, or a CPU that works in an order of its own (host_driver.h).
#pragma once

#include "contextile/kernel.h"
#include "device/driver.h"

namespace contextile {

// Throws what open_gpu does.
[[nodiscard]] cuda::Driver& device_under_test();
// Its kernel, on tensors of this process.
[[nodiscard]] const AttentionKernel& staged_kernel();

}  // namespace contextile
