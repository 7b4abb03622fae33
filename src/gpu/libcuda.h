// NVIDIA GPUs by the driver's library, which is loaded when a device is opened: nothing of CUDA is
// needed to build, install or run without one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/driver.h"

namespace contextile::cuda {

struct DeviceOptions {
  std::int32_t ordinal = 0;
  // Kernels are in FOLDER/MODULE.ARCHITECTURE.cubin, as scripts/cuda-kernels leaves them.
  std::string folder;
  std::vector<std::string> modules;
  // Modules that are loaded where they are compiled for the device.
  std::vector<std::string> optional_modules = {};
  // The driver's library; empty: that of the system.
  std::string library;
};
// How many this machine has. Throws as open_device does.
[[nodiscard]] std::int32_t count_devices(const std::string& library);

// "sm_80", "sm_90a" or "sm_100": what is compiled and runs on a device of that compute capability.
// Throws InvalidArgument naming the capability where nothing does.
[[nodiscard]] std::string_view compiled_architecture(std::int32_t major, std::int32_t minor);

// Throws InvalidArgument where there is no driver library, no such device or no kernels for it,
// DeviceError where the driver reports an error.
[[nodiscard]] std::unique_ptr<Driver> open_device(const DeviceOptions& options);

}  // namespace contextile::cuda
