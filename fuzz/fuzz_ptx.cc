// PTX of an emulated GPU: any text is refused with a Fault, or runs within the memory that it is
// given and ends.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "gpu/emulated/machine.h"

namespace {

alignas(16) std::array<std::uint64_t, 64> memory;

bool is_memory(std::uint64_t address, std::uint64_t bytes) {
  const std::uint64_t offset = address - reinterpret_cast<std::uintptr_t>(memory.data());
  return offset <= sizeof(memory) && bytes <= sizeof(memory) - offset;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::uint64_t* const parameter = memory.data();
  contextile::ptx::Machine machine;
  machine.is_memory = is_memory;
  machine.most_instructions = 10'000;
  contextile::ptx::Launch launch;
  launch.threads = 64;
  launch.shared_bytes = 1024;
  launch.parameters = std::as_bytes(std::span(&parameter, 1));
  try {
    contextile::ptx::Module module(std::string(reinterpret_cast<const char*>(data), size));
    for (const std::string& name : module.names()) {
      contextile::ptx::run(machine, module.kernel(name), launch);
    }
  } catch (const contextile::ptx::Fault&) {  // the only way to refuse
  }
  return 0;
}
