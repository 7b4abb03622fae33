// A driver library as libcuda.so.1 is, on a device that is this machine's CPU: what the manual says
// of the functions that src/gpu/libcuda.cc calls, with its checks of arguments. Work is done
// where it is asked for, or kept where its stream is captured. PTX runs on a machine for it
// (ptx/machine.h). Other modules are files that begin as ELF, or as a comment, with the module's
// name behind, or compiled kernels. The kernels of those run in loops.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "support/fake_libcuda_state.h"
#include "support/host_box_map.h"
#include "support/host_grid.h"
#include "support/ptx_modules.h"

using namespace contextile::fake_cuda;  // NOLINT(google-build-using-namespace): C functions

namespace {

Result allocate(DevicePointer* pointer, std::size_t bytes) {
  if (bytes == 0) return kInvalidValue;
  if (bytes > kLargestAllocation) return kOutOfMemory;
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(memory, 0xff, bytes);
  *pointer = reinterpret_cast<DevicePointer>(memory);
  state().device[reinterpret_cast<std::uintptr_t>(memory)] = bytes;
  return kSuccess;
}

Result release(DevicePointer pointer) {
  if (state().device.erase(static_cast<std::uintptr_t>(pointer)) == 0) return kInvalidValue;
  std::free(reinterpret_cast<void*>(pointer));
  return kSuccess;
}

Result make_handle(void** handle, std::set<void*>& all) {
  *handle = std::malloc(1);
  all.insert(*handle);
  return kSuccess;
}
template <typename Handles>
Result drop_handle(void* handle, Handles& all) {
  if (all.erase(handle) == 0) return kInvalidHandle;
  std::free(handle);
  return kSuccess;
}

}  // namespace

extern "C" Result cuInit(unsigned flags) {
  const std::lock_guard lock(state().mutex);
  state().initialized = flags == 0;
  return flags == 0 ? kSuccess : kInvalidValue;
}
extern "C" Result cuGetErrorString(Result error, const char** text) {
  *text = error == kOutOfMemory ? "out of memory" : "invalid argument";
  return kSuccess;
}
extern "C" Result cuDeviceGetCount(int* count) {
  *count = 1;
  return kSuccess;
}
extern "C" Result cuDeviceGet(int* device, int ordinal) {
  *device = 7;
  return ordinal == 0 ? kSuccess : kInvalidValue;
}
extern "C" Result cuDeviceGetName(char* name, int size, int device) {
  if (device != 7) return kInvalidValue;
  std::strncpy(name, "a CPU", static_cast<std::size_t>(size));
  return kSuccess;
}
extern "C" Result cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (device != 7 || (attribute != 75 && attribute != 76)) return kInvalidValue;
  *value = attribute == 75 ? 9 : 0;
  return kSuccess;
}
// The layout of CUmemPoolProps in cuda.h.
struct PoolProperties {
  int allocation, handles, location, device;
  void* security;
  std::size_t largest;
  unsigned char reserved[56];
};
extern "C" Result cuMemPoolCreate(void** pool, const PoolProperties* properties) {
  return guarded([&] {
    const bool is_of_device = properties->allocation == 1 && properties->location == 1 &&
                              properties->device == 7 && properties->reserved[0] == 0;
    return is_of_device ? make_handle(pool, state().pools) : kInvalidValue;
  });
}
extern "C" Result cuMemPoolDestroy(void* pool) {
  return guarded([&] { return drop_handle(pool, state().pools); });
}
extern "C" Result cuMemPoolSetAttribute(void* pool, int attribute, void* value) {
  return state().pools.contains(pool) && attribute == 4 && value != nullptr ? kSuccess
                                                                            : kInvalidValue;
}
extern "C" Result cuDevicePrimaryCtxRetain(void** context, int device) {
  const std::lock_guard lock(state().mutex);
  ++state().num_holders;
  *context = &state().context;
  return device == 7 ? kSuccess : kInvalidValue;
}
// Everything must be released before the last context goes.
extern "C" Result cuDevicePrimaryCtxRelease_v2(int device) {
  const std::lock_guard lock(state().mutex);
  const bool is_empty = state().streams.empty() && state().events.empty() &&
                        state().pinned.empty() && state().graphs.empty() &&
                        state().modules.empty() && state().pools.empty() && !state().capture;
  if (--state().num_holders == 0 && !is_empty) std::abort();
  return device == 7 ? kSuccess : kInvalidValue;
}
extern "C" Result cuCtxSetCurrent(void* context) {
  if (context != nullptr && context != &state().context) return kInvalidValue;
  current = context;
  return kSuccess;
}
extern "C" Result cuCtxGetCurrent(void** context) {
  *context = current;
  return kSuccess;
}
extern "C" Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return current == nullptr ? kNoContext : kSuccess;
}
extern "C" Result cuModuleLoadData(void** module, const void* image) {
  return guarded([&] {
    std::string_view text = static_cast<const char*>(image);
    const bool is_known = text.starts_with(
                              "\x7f"
                              "ELF") ||
                          text.starts_with("// ");
    if (contextile::ptx::is_ptx(text)) {
      const contextile::ptx::Module* const parsed = contextile::ptx::loaded_module(text);
      if (parsed == nullptr) return kInvalidImage;
      *module = std::malloc(1);
      state().modules[*module] = "";
      state().ptx_modules[*module] = parsed;
      return kSuccess;
    }
    if (!is_known) return kInvalidImage;
    text.remove_prefix(text.starts_with("//") ? 3 : 4);
    constexpr char kOf64Bits = 2;  // a compiled module, which may have any function
    if (text.starts_with(kOf64Bits)) text = {};
    *module = std::malloc(1);
    state().modules[*module] = std::string(text);
    return kSuccess;
  });
}
extern "C" Result cuModuleUnload(void* module) {
  return guarded([&] {
    state().ptx_modules.erase(module);
    return drop_handle(module, state().modules);
  });
}
// The module that scripts/cuda-kernels compiles a kernel into.
std::string module_of_function(std::string_view name) {
  for (const char* module : {"rows", "paged", "wgmma"}) {
    if (name.starts_with(std::string(module) + "_")) return module;
  }
  return "mma";
}
// A function is its name.
extern "C" Result cuModuleGetFunction(void** function, void* module, const char* name) {
  return guarded([&] {
    const auto found = state().modules.find(module);
    if (found == state().modules.end()) return kInvalidHandle;
    if (!found->second.empty() && found->second != module_of_function(name)) {
      ++state().num_missed_functions;
      return kNotFound;
    }
    const auto ptx = state().ptx_modules.find(module);
    if (ptx == state().ptx_modules.end()) {
      state().ptx_kernels.erase(name);
    } else {
      const auto kernel = ptx->second->find(name);
      if (kernel == ptx->second->end()) return kNotFound;
      state().ptx_kernels[name] = &kernel->second;
    }
    const auto at = state().shared.try_emplace(name, kSharedWithoutAsking).first;
    *function = const_cast<char*>(at->first.c_str());
    return kSuccess;
  });
}
// How often a function was looked for where it is not. compute-sanitizer counts that as an error.
extern "C" int contextileFakeMissedFunctions() { return state().num_missed_functions; }
extern "C" Result cuFuncSetAttribute(void* function, int attribute, int value) {
  return guarded([&] {
    if (attribute != 8) return kInvalidValue;
    state().shared.at(static_cast<const char*>(function)) = value;
    return kSuccess;
  });
}
extern "C" Result cuMemAlloc_v2(DevicePointer* pointer, std::size_t bytes) {
  return guarded([&] { return allocate(pointer, bytes); });
}
extern "C" Result cuMemFree_v2(DevicePointer pointer) {
  return guarded([&] { return release(pointer); });
}
extern "C" Result cuMemAllocFromPoolAsync(DevicePointer* pointer, std::size_t bytes, void* pool,
                                          void* stream) {
  return guarded([&] {
    if (is_captured(stream))
      return kNotSupported;  // the driver allocates graph memory in another way
    const bool is_known = is_stream(stream) && state().pools.contains(pool);
    return is_known ? allocate(pointer, bytes) : kInvalidHandle;
  });
}
extern "C" Result cuMemFreeAsync(DevicePointer pointer, void* stream) {
  return guarded([&] {
    if (is_captured(stream)) return kNotSupported;
    return is_stream(stream) ? release(pointer) : kInvalidHandle;
  });
}
extern "C" Result cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  return guarded([&] {
    *memory = std::malloc(bytes);
    state().pinned.insert(*memory);
    return kSuccess;
  });
}
extern "C" Result cuMemFreeHost(void* memory) {
  return guarded([&] { return drop_handle(memory, state().pinned); });
}
extern "C" Result cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return guarded([&] {
    if (flags > 1 || priority > 0 || priority < -5) return kInvalidValue;
    *stream = std::malloc(1);
    state().streams[*stream] = priority;
    return kSuccess;
  });
}
extern "C" Result cuStreamGetPriority(void* stream, int* priority) {
  return guarded([&] {
    const auto found = state().streams.find(stream);
    if (found == state().streams.end()) return kInvalidHandle;
    *priority = found->second;
    return kSuccess;
  });
}
extern "C" Result cuStreamDestroy_v2(void* stream) {
  return guarded([&] { return drop_handle(stream, state().streams); });
}
extern "C" Result cuStreamSynchronize(void* stream) {
  return guarded([&] {
    if (is_captured(stream)) return kCaptureUnsupported;
    return is_stream(stream) ? kSuccess : kInvalidHandle;
  });
}
extern "C" Result cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return guarded([&] {
    const bool known = is_stream(stream) && state().events.contains(event);
    if (!known || flags != 0) return kInvalidHandle;
    const auto captured = state().captured_events.find(event);
    if (captured == state().captured_events.end()) {
      return is_captured(stream) ? kCaptureIsolation : kSuccess;
    }
    const auto [capture, node] = captured->second;
    if (!state().capture || capture != state().num_captures) return kCapturedEvent;
    state().capture->add(
        stream, [] { return kSuccess; }, node);
    return kSuccess;
  });
}
extern "C" Result cuEventCreate(void** event, unsigned flags) {
  return guarded([&] { return flags == 2 ? make_handle(event, state().events) : kInvalidValue; });
}
extern "C" Result cuEventDestroy_v2(void* event) {
  return guarded([&] {
    state().captured_events.erase(event);
    return drop_handle(event, state().events);
  });
}
extern "C" Result cuEventRecord(void* event, void* stream) {
  return guarded([&] {
    if (!is_stream(stream) || !state().events.contains(event)) return kInvalidHandle;
    state().captured_events.erase(event);
    if (!is_captured(stream)) return kSuccess;
    const std::size_t node = state().capture->add(stream, [] { return kSuccess; });
    state().captured_events[event] = {state().num_captures, node};
    return kSuccess;
  });
}
extern "C" Result cuEventQuery(void* event) {
  return guarded([&] {
    if (state().captured_events.contains(event)) return kCapturedEvent;
    return state().events.contains(event) ? kSuccess : kInvalidHandle;
  });
}
extern "C" Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, std::size_t bytes,
                                       void* stream) {
  return guarded([&] {
    if (!is_stream(stream) || !is_device(to, bytes)) return kInvalidValue;
    return on_stream(stream, [=] {  // from memory that must be there whenever the graph runs
      std::memcpy(reinterpret_cast<void*>(to), from, bytes);
      return kSuccess;
    });
  });
}
extern "C" Result cuMemcpyDtoH_v2(void* to, DevicePointer from, std::size_t bytes) {
  return guarded([&] {
    if (!is_device(from, bytes)) return kInvalidValue;
    std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
    return kSuccess;
  });
}
extern "C" Result cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, std::size_t bytes,
                                       void* stream) {
  return guarded([&] {
    if (!is_stream(stream) || !is_device(to, bytes) || !is_device(from, bytes)) {
      return kInvalidValue;
    }
    return on_stream(stream, [=] {
      std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
      return kSuccess;
    });
  });
}
// The layout of cuda.h (CUDA_MEMCPY2D_v2).
struct Copy2D {
  std::size_t from_x, from_y;
  int from_kind;
  const void* from_host;
  DevicePointer from;
  void* from_array;
  std::size_t from_pitch;
  std::size_t to_x, to_y;
  int to_kind;
  void* to_host;
  DevicePointer to;
  void* to_array;
  std::size_t to_pitch;
  std::size_t width, height;
};
static_assert(sizeof(Copy2D) == 128);
extern "C" Result cuMemcpy2DAsync_v2(const Copy2D* copy, void* stream) {
  return guarded([&] {
    if (!is_stream(stream) || copy->from_kind != 2 || copy->to_kind != 2 || copy->from_x != 0 ||
        copy->from_y != 0 || copy->to_x != 0 || copy->to_y != 0 || copy->width > copy->from_pitch ||
        copy->width > copy->to_pitch || copy->from_pitch > kLargestPitch ||
        copy->to_pitch > kLargestPitch) {
      return kInvalidValue;
    }
    // Both sides are in one allocation, from the first row to the last.
    const std::size_t behind = copy->height - 1;
    if (!is_device(copy->from, behind * copy->from_pitch + copy->width) ||
        !is_device(copy->to, behind * copy->to_pitch + copy->width)) {
      return kInvalidValue;
    }
    return on_stream(stream, [all = *copy] {
      for (std::size_t row = 0; row < all.height; ++row) {
        const DevicePointer to = all.to + row * all.to_pitch;
        const DevicePointer from = all.from + row * all.from_pitch;
        if (!is_device(to, all.width) || !is_device(from, all.width)) return kInvalidValue;
        std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), all.width);
      }
      return kSuccess;
    });
  });
}
extern "C" Result cuMemsetD8Async(DevicePointer to, unsigned char value, std::size_t bytes,
                                  void* stream) {
  return guarded([&] {
    if (!is_stream(stream) || !is_device(to, bytes)) return kInvalidValue;
    return on_stream(stream, [=] {
      std::memset(reinterpret_cast<void*>(to), value, bytes);
      return kSuccess;
    });
  });
}
// Tensors of 16-bit elements and three dimensions; of a map's kinds the one that kernels read.
extern "C" Result cuTensorMapEncodeTiled(void* map, int type, std::uint32_t rank, void* data,
                                         const std::uint64_t* sizes, const std::uint64_t* strides,
                                         const std::uint32_t* box, const std::uint32_t* every,
                                         int interleave, int swizzle, int promotion, int fill) {
  return guarded([&] {
    const auto is_multiple = [](const void* place, std::uintptr_t of) {
      return reinterpret_cast<std::uintptr_t>(place) % of == 0;
    };
    if (!is_multiple(map, 64) || !is_multiple(data, 16) || type != 1 || rank != 3 ||
        interleave != 0 || swizzle != 3 || promotion != 3 || fill != 0 || box[0] * 2 > 128) {
      return kInvalidValue;
    }
    for (std::uint32_t d = 0; d < rank; ++d) {
      if (sizes[d] == 0 || sizes[d] > (std::uint64_t{1} << 32) || box[d] == 0 || box[d] > 256 ||
          every[d] != 1) {
        return kInvalidValue;
      }
      if (d > 0 && (strides[d - 1] % 16 != 0 || strides[d - 1] >= (std::uint64_t{1} << 40))) {
        return kInvalidValue;
      }
    }
    const auto count = [](auto size) { return static_cast<std::int32_t>(size); };
    const auto bytes = [](std::uint64_t stride) { return static_cast<std::int64_t>(stride); };
    *static_cast<contextile::cuda::BoxMap*>(map) = contextile::cuda::packed_map(
        {data, count(sizes[0]), count(sizes[1]), static_cast<std::int64_t>(sizes[2]),
         bytes(strides[0]), bytes(strides[1]), count(box[0]), count(box[1]), count(box[2])});
    return kSuccess;
  });
}
Result run_ptx(const contextile::ptx::Kernel& kernel, const contextile::ptx::Launch& launch) {
  const auto is_memory = [](std::uint64_t address, std::uint64_t bytes) {
    return is_device(address, static_cast<std::size_t>(bytes));
  };
  return contextile::ptx::run_or_report(kernel, launch, is_memory) ? kSuccess : kLaunchFailed;
}
// The only parameter is a struct; its size is the kernel's to know.
extern "C" Result cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z,
                                 unsigned threads, unsigned threads_y, unsigned threads_z,
                                 unsigned shared, void* stream, void** arguments, void** extra) {
  return guarded([&] {
    const std::string name = static_cast<const char*>(function);
    if (!is_stream(stream) || x == 0 || y == 0 || z != 1 || threads == 0 || threads_y != 1 ||
        threads_z != 1 || extra != nullptr || static_cast<int>(shared) > state().shared.at(name)) {
      return kInvalidValue;
    }
    const auto size = [](unsigned count) { return static_cast<std::int32_t>(count); };
    const auto* const argument = static_cast<const std::byte*>(arguments[0]);
    if (const auto ptx = state().ptx_kernels.find(name); ptx != state().ptx_kernels.end()) {
      const contextile::ptx::Kernel* const kernel = ptx->second;
      const std::vector<std::byte> bytes(argument, argument + kernel->parameter_bytes);
      return on_stream(stream, [=] {
        return run_ptx(*kernel, {size(x), size(y), size(threads), size(shared), bytes});
      });
    }
    const std::vector<std::byte> bytes(argument, argument + contextile::cuda::argument_bytes(name));
    return on_stream(stream, [=] {
      try {
        contextile::cuda::run_on_host({{}, name, size(x), size(y), size(threads), size(shared)},
                                      bytes);
      } catch (const std::exception&) {
        return kLaunchFailed;
      }
      return kSuccess;
    });
  });
}
