// NVIDIA GPUs through the driver's library, which is loaded when a device is opened. So nothing of
// CUDA is needed to build, install or run Contextile without a GPU.
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
  // Folders of the kernels, the likeliest first: FOLDER/MODULE.ARCHITECTURE.cubin, or .ptx, as
  // scripts/cuda-kernels writes them. All modules come from the first folder that has every one.
  std::vector<std::string> folders = {};
  std::vector<std::string> modules = {};
  // Modules that are loaded only if that folder has them for the device.
  std::vector<std::string> optional_modules = {};
  // File of the driver's library; empty: the system's own; emulated::kLibrary: none, the device is
  // emulated, with PTX for modules.
  std::string library;
};
// Returns the number of devices of this machine, 0 if the driver does not start. Throws as
// open_device does.
[[nodiscard]] std::int32_t count_devices(const std::string& library);

// Throws InvalidArgument if there is no driver library, no such device or no kernels for it, and
// DeviceError if the driver reports an error.
[[nodiscard]] std::unique_ptr<Driver> open_device(const DeviceOptions& options);

}  // namespace contextile::cuda
