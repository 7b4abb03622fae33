// A machine that executes PTX, the compiler's output, on the CPU. It interprets one block of
// threads at a time, with 32 lanes side by side, and follows the PTX ISA manual (versions 8.7 to
// 9.0, whose section numbers the comments of this folder use). It shares no code with the kernels.
//
// The machine looks for errors that a device may hide:
//
//   * Warps run in random turns. The seed of a failed block is part of the message.
//   * Asynchronous copies and products complete as late as they may, or at once. Until then their
//     destinations hold NaN, and the operands of products must not change.
//   * Registers and shared memory hold NaN until they are written.
//   * Barriers order accesses of shared memory by different warps.
//   * Data that threads wrote to shared memory needs a proxy fence before TMA or wgmma uses it.
//   * Every address must be aligned and belong to an allocation.
//   * Barriers have the expected number of arrivals, and some warp always makes progress.
//
// It does not see what comes after PTX: register allocation, bank conflicts, occupancy, the
// rounding inside tensor cores, and weak memory order within one proxy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/emulated/kernel.h"

namespace contextile::ptx {

// An error of the program that runs, or an instruction that the machine does not know.
class Fault : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// When asynchronous work completes, within the bounds of the PTX manual.
enum class Timing : std::uint8_t { kLate, kAtOnce };

struct Launch {
  int blocks_x = 1;
  int blocks_y = 1;
  int threads = 32;  // per block, a multiple of 32
  int shared_bytes = 0;
  std::span<const std::byte> parameters;
};

struct Machine {
  Timing timing = Timing::kLate;
  std::uint64_t seed = 1;  // each block adds one
  // True if the bytes from an address on are in one allocation of the device.
  bool (*is_memory)(std::uint64_t address, std::uint64_t bytes) = nullptr;
  std::int64_t most_instructions = 400'000'000;  // of a block
  std::int64_t num_instructions = 0;             // that warps executed so far
  // If set, gets every opcode that ran.
  std::set<std::string>* opcodes = nullptr;
};

// Runs all blocks of a launch, one after another. Throws Fault, with the kernel, the block and its
// seed in the message.
void run(Machine& machine, const Kernel& kernel, const Launch& launch);

// A module: the text of PTX, whose kernels are parsed when they are asked for.
class Module {
 public:
  // Throws Fault if the text is not PTX.
  explicit Module(std::string text);
  ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  [[nodiscard]] bool has(std::string_view kernel) const { return sources_.contains(kernel); }
  [[nodiscard]] std::vector<std::string> names() const;
  // Throws Fault if there is no such kernel, or if it has an instruction that the machine does not
  // know.
  [[nodiscard]] const Kernel& kernel(std::string_view name);

 private:
  struct Source {
    std::string_view parameters;
    std::string_view body;
    std::unique_ptr<const Kernel> parsed = nullptr;
  };
  std::string text_;  // without comments
  std::set<std::string, std::less<>> shared_;
  std::map<std::string, Source, std::less<>> sources_;
};

}  // namespace contextile::ptx
