// Launches of the device's kernels, on this machine's CPU.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "gpu/driver.h"

namespace contextile::cuda {

// Runs a kernel by the name of its entry point. Throws InvalidArgument if there is no such kernel,
// or if its argument has another size.
void run_on_host(const Grid& grid, std::span<const std::byte> arguments);
// Bytes of the kernel's argument; 0 if there is no kernel of that name.
[[nodiscard]] std::size_t argument_bytes(std::string_view kernel);

}  // namespace contextile::cuda
