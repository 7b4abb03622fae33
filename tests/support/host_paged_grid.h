// Launches of the device's kernels for keys in pages, on this machine's CPU.
#pragma once

#include <cstddef>
#include <span>

#include "gpu/driver.h"

namespace contextile::cuda {

// Returns true if the kernel is one of them; then it has run. Throws like run_on_host.
[[nodiscard]] bool run_paged_on_host(const Grid& grid, std::span<const std::byte> arguments);

}  // namespace contextile::cuda
