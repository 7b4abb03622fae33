// Modules of compiled kernels on a device, and their functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "gpu/driver.h"
#include "gpu/driver_library.h"

namespace contextile::cuda {

// Its calls need the device's context to be the thread's current one. `function` may be called by
// several threads at a time.
class LoadedModules {
 public:
  // Throws the error of a call that did not succeed.
  using Check = std::function<void(std::string_view call, Result result)>;

  LoadedModules(const Library& cuda, Check check) : cuda_(cuda), check_(std::move(check)) {}

  // Sets the shared memory that a block may have, in bytes. Without it no kernel may have any.
  void set_max_shared_bytes(std::int32_t bytes) { max_shared_bytes_ = bytes; }
  // Loads a cubin, or PTX, which the driver compiles.
  void load(const std::string& name, const std::string& file);
  void unload() noexcept {
    for (const auto& [name, module] : modules_) cuda_.unload_module(module);
    modules_.clear();
  }
  [[nodiscard]] bool has(std::string_view module) const { return modules_.contains(module); }
  // Returns the kernel of a launch, with room for its shared memory. Throws InvalidArgument if it
  // was compiled for an argument of another size, or if the device has less shared memory.
  [[nodiscard]] void* function(const Grid& grid, std::size_t argument_bytes);

 private:
  struct Function {
    void* handle = nullptr;
    std::int32_t shared_bytes = 0;   // set as the kernel's limit so far
    std::size_t argument_bytes = 0;  // 0: unknown
  };

  // Loads all kernels of a module at once. A kernel that is loaded by its first launch may wait for
  // the device while another kernel waits for a peer, and the peer for this rank.
  void load_functions(void* module);
  // Bytes of the function's argument; 0 if the driver does not say.
  [[nodiscard]] std::size_t argument_bytes(void* function) const;

  const Library& cuda_;
  const Check check_;
  std::int32_t max_shared_bytes_ = 0;
  std::map<std::string, void*, std::less<>> modules_;  // by name
  std::mutex mutex_;                                   // of functions_
  std::map<std::string, Function> functions_;
};

}  // namespace contextile::cuda
