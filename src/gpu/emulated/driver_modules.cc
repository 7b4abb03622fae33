// Modules and launches of the emulated driver.
#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/emulated/device.h"
#include "gpu/emulated/functions.h"

namespace contextile::emulated {
namespace {

// Does work that may have faults, and keeps the last one's text.
template <typename Work>
Result without_fault(Result otherwise, const Work& work) {
  try {
    work();
    return kSuccess;
  } catch (const std::exception& error) {
    device().last_fault = error.what();
    return otherwise;
  }
}

Result run(const Function& function, const ptx::Launch& launch) {
  ++device().num_launches;
  return without_fault(kLaunchFailed,
                       [&] { ptx::run(device().machine, *function.kernel, launch); });
}

Result run_other(const cuda::Grid& grid, const std::vector<std::byte>& arguments) {
  return without_fault(kLaunchFailed, [&] { device().others->run(grid, arguments); });
}

std::size_t argument_bytes(const Function& of) {
  return of.kernel != nullptr ? of.kernel->parameter_bytes
                              : device().others->argument_bytes(of.name);
}

std::int32_t size(unsigned count) { return static_cast<std::int32_t>(count); }

}  // namespace

Result load_module(void** module, const void* image) {
  return guarded([&] {
    const std::string_view text = static_cast<const char*>(image);
    auto made = std::make_unique<LoadedModule>();
    if (device().others != nullptr && device().others->knows(text)) {
      made->image = text;
    } else {
      const Result result = without_fault(
          kInvalidImage, [&] { made->ptx = std::make_unique<ptx::Module>(std::string(text)); });
      if (result != kSuccess) return result;
    }
    *module = made.get();
    device().modules[*module] = std::move(made);
    return kSuccess;
  });
}

Result unload_module(void* module) {
  return guarded([&] { return device().modules.erase(module) == 0 ? kInvalidHandle : kSuccess; });
}

Result get_function(void** function, void* module, const char* name) {
  return guarded([&] {
    const auto found = device().modules.find(module);
    if (found == device().modules.end()) return kInvalidHandle;
    LoadedModule& of = *found->second;
    const bool has = of.ptx ? of.ptx->has(name) : device().others->has(of.image, name);
    if (!has) return kNotFound;
    std::unique_ptr<Function>& made = of.functions[name];
    if (!made) {
      made = std::make_unique<Function>(Function{name});
      const Result result = without_fault(kInvalidImage, [&] {
        if (of.ptx) made->kernel = &of.ptx->kernel(name);
      });
      if (result != kSuccess) {
        made.reset();
        return result;
      }
    }
    *function = made.get();
    return kSuccess;
  });
}

Result set_function(void* function, int attribute, int value) {
  return guarded([&] {
    if (attribute != cuda::kDynamicShared || value > kMaxSharedBytes) return kInvalidValue;
    static_cast<Function*>(function)->shared_bytes = value;
    return kSuccess;
  });
}

Result parameter_info(void* function, std::size_t index, std::size_t* offset, std::size_t* bytes) {
  return guarded([&] {
    *offset = 0;
    *bytes = argument_bytes(*static_cast<Function*>(function));
    return index == 0 ? kSuccess : kInvalidValue;
  });
}

Result launch(void* function, unsigned x, unsigned y, unsigned z, unsigned threads,
              unsigned threads_y, unsigned threads_z, unsigned shared, void* stream,
              void** arguments, void** extra) {
  return guarded([&] {
    const Function& of = *static_cast<Function*>(function);
    if (!is_stream(stream) || x == 0 || y == 0 || z != 1 || threads == 0 || threads_y != 1 ||
        threads_z != 1 || extra != nullptr || size(shared) > of.shared_bytes) {
      return kInvalidValue;
    }
    const auto* const argument = static_cast<const std::byte*>(arguments[0]);
    const std::vector<std::byte> kept(argument, argument + argument_bytes(of));
    return on_stream(stream, [=, &of] {
      if (of.kernel != nullptr) {
        return run(of, {size(x), size(y), size(threads), size(shared), kept});
      }
      return run_other({{}, of.name, size(x), size(y), size(threads), size(shared)}, kept);
    });
  });
}

}  // namespace contextile::emulated
