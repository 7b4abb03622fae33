// Files of compiled modules.
#pragma once

#include <string>
#include <string_view>

#include "gpu/libcuda.h"

namespace contextile::cuda {

// Returns the file of a module for a device with an architecture (compiled_architecture). For an
// emulated device it is PTX, of the newest architecture in the folder.
[[nodiscard]] std::string module_file(const DeviceOptions& options, std::string_view module,
                                      std::string_view architecture);

}  // namespace contextile::cuda
