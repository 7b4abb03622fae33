// The driver of a GPU with the kernels of the library.
#pragma once

#include <memory>

#include "contextile/gpu.h"
#include "device/driver.h"

namespace contextile::cuda {

// Throws as open_gpu does.
[[nodiscard]] std::unique_ptr<Driver> open_gpu_driver(const GpuOptions& options);

}  // namespace contextile::cuda
