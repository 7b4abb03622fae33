// Small programs for the machine that executes PTX.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gpu/emulated/machine.h"

namespace contextile::ptx {

// A module of one kernel, "test". It begins with %rd1 at the lane's 8 bytes of output, %rd2 at the
// output, %r1 as the thread and %r2 as an address of shared memory for it.
[[nodiscard]] std::string program(const std::string& body);

// Runs the kernel "test" of a module on threads of one block, and returns their outputs. Opcodes
// that ran are added to the file CONTEXTILE_PTX_OPCODES when the process ends.
[[nodiscard]] std::vector<std::uint64_t> run_module(const std::string& text, int threads,
                                                    Timing timing, std::int64_t most_instructions);
[[nodiscard]] std::vector<std::uint64_t> run_program(const std::string& body, int threads = 32,
                                                     Timing timing = Timing::kLate);
// The message of the program's fault.
[[nodiscard]] std::string fault_of(const std::string& body, int threads = 32);

}  // namespace contextile::ptx
