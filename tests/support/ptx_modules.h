// PTX modules of the fake driver library, executed by the machine of ptx/machine.h.
//
// Environment: CONTEXTILE_PTX_TIMING=at-once completes asynchronous work at once instead of late;
// CONTEXTILE_PTX_SEED is the seed of the first block.
#pragma once

#include <cstdint>
#include <string_view>

#include "support/ptx/machine.h"

namespace contextile::ptx {

// True if the text of a module is PTX.
[[nodiscard]] bool is_ptx(std::string_view text);

// Parses a module, or finds what was parsed before. Prints what is wrong and returns null if the
// machine does not know an instruction. Modules are kept until the process ends.
[[nodiscard]] const Module* loaded_module(std::string_view text);

// Runs a launch. Prints what is wrong, and returns false, if there is a fault.
[[nodiscard]] bool run_or_report(const Kernel& kernel, const Launch& launch,
                                 bool (*is_memory)(std::uint64_t address, std::uint64_t bytes));

}  // namespace contextile::ptx
