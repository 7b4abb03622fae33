// The memory that the process may still take.
#pragma once

#include <cstdint>

namespace contextile {

// Bytes that the system has available and that the limit of the process's address space leaves.
// The largest number if neither is known.
[[nodiscard]] std::int64_t available_memory_bytes();

}  // namespace contextile
