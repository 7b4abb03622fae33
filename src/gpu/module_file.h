// Files of compiled modules: which of them run on a device, and where they are.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/libcuda.h"

namespace contextile::cuda {

// Returns the architectures whose compiled code runs on a device of that compute capability, the
// best first. Those that begin with "sm_" are machine code; the others are PTX, which the driver
// compiles. Throws InvalidArgument naming the capability if none does.
[[nodiscard]] std::vector<std::string_view> architectures_for(std::int32_t major,
                                                              std::int32_t minor);
// The same for an emulated device, which takes PTX only.
[[nodiscard]] std::vector<std::string_view> emulated_architectures();

// The file of each module, by its name.
using ModuleFiles = std::map<std::string, std::string, std::less<>>;

// Returns the files of a device's modules from the first of its folders that has all of them for
// one of the architectures. Optional modules are taken from the same folder, if it has them. Throws
// InvalidArgument if no folder has them all: it names every folder and file that was looked for,
// and `device`, for example "NVIDIA H200 (compute capability 9.0)".
[[nodiscard]] ModuleFiles find_modules(const DeviceOptions& options,
                                       const std::vector<std::string_view>& architectures,
                                       std::string_view device);

}  // namespace contextile::cuda
