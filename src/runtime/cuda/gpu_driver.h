// The driver of a GPU with the kernels of the library.
#pragma once

#include <memory>

#include "contextile/advanced/gpu.h"
#include "gpu/driver.h"
#include "kernel/cuda/passes.h"

namespace contextile::cuda {

// Throws as open_gpu does.
[[nodiscard]] std::unique_ptr<Driver> open_gpu_driver(const GpuOptions& options);
// The program of the kernel that the options name, or the fastest that the driver has. Throws
// InvalidArgument if there is no such kernel, or if the driver lacks its module.
[[nodiscard]] Program program_of(const GpuOptions& options, const Driver& driver);

}  // namespace contextile::cuda
