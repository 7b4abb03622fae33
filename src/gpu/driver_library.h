// The functions of CUDA's driver, loaded from its shared library, or those of the emulated driver.
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <string>

#include "base/check.h"
#include "gpu/emulated/find_function.h"
#include "gpu/encode_map.h"

namespace contextile::cuda {

// The part of the driver's interface that is used here, from its manual (CUDA Driver API). Names
// carry the version of the symbol.
using Result = int;
using DevicePointer = unsigned long long;  // NOLINT(google-runtime-int): the driver's type
// CUmemPoolProps.
struct PoolProperties {
  int allocation = 1;  // pinned
  int handles = 0;     // none
  int location = 1;    // a device
  int device = 0;
  void* security = nullptr;
  std::size_t largest = 0;  // as the system has it
  std::array<unsigned char, 56> reserved{};
};
static_assert(sizeof(PoolProperties) == 88);
using Uuid = std::array<unsigned char, 16>;  // CUuuid
constexpr Result kSuccess = 0;
constexpr Result kNotFound = 500;
constexpr Result kNotReady = 600;
constexpr int kMajor = 75, kMinor = 76;           // of the compute capability
constexpr int kMaxShared = 97;                    // bytes of shared memory that a block may ask for
constexpr unsigned kNonBlocking = 1;              // a stream independent of the default one
constexpr unsigned kNoTiming = 2;                 // an event without a clock
constexpr int kRelaxed = 2;                       // a capture that forbids no other calls
constexpr int kNotCaptured = 0;                   // status of a stream
constexpr int kDynamicShared = 8;                 // attribute of a function
constexpr int kReleaseThreshold = 4;              // attribute of a memory pool
constexpr std::size_t kPinnedBytes = 256 * 1024;  // smallest chunk of memory for writes

// Functions of the library, looked up when it is opened.
class Library {
 public:
  explicit Library(const std::string& name)
      : is_emulated_(name == emulated::kLibrary),
        handle_(is_emulated_ ? nullptr : ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    CONTEXTILE_CHECK(is_emulated_ || handle_ != nullptr,
                     "cuda: expected the driver's library {}, found none: {}", name, ::dlerror());
    const auto find = [&](auto& function, const char* symbol) {
      look_up(function, symbol);
      CONTEXTILE_CHECK(function != nullptr, "cuda: expected {} in {}, found no such function",
                       symbol, name);
    };
    find(init, "cuInit");
    find(error_text, "cuGetErrorString");
    find(device_count, "cuDeviceGetCount");
    find(device_get, "cuDeviceGet");
    find(device_name, "cuDeviceGetName");
    find(device_uuid, "cuDeviceGetUuid_v2");
    find(device_attribute, "cuDeviceGetAttribute");
    find(create_pool, "cuMemPoolCreate");
    find(destroy_pool, "cuMemPoolDestroy");
    find(pool_attribute, "cuMemPoolSetAttribute");
    find(retain_context, "cuDevicePrimaryCtxRetain");
    find(release_context, "cuDevicePrimaryCtxRelease_v2");
    find(set_context, "cuCtxSetCurrent");
    find(get_context, "cuCtxGetCurrent");
    find(priorities, "cuCtxGetStreamPriorityRange");
    find(load_module, "cuModuleLoadData");
    find(unload_module, "cuModuleUnload");
    find(get_function, "cuModuleGetFunction");
    find(set_function, "cuFuncSetAttribute");
    find(allocate, "cuMemAlloc_v2");
    find(free, "cuMemFree_v2");
    find(allocate_async, "cuMemAllocFromPoolAsync");
    find(free_async, "cuMemFreeAsync");
    find(allocate_host, "cuMemHostAlloc");
    find(free_host, "cuMemFreeHost");
    find(create_stream, "cuStreamCreateWithPriority");
    find(destroy_stream, "cuStreamDestroy_v2");
    find(synchronize, "cuStreamSynchronize");
    find(wait_event, "cuStreamWaitEvent");
    find(create_event, "cuEventCreate");
    find(destroy_event, "cuEventDestroy_v2");
    find(record_event, "cuEventRecord");
    find(query_event, "cuEventQuery");
    find(to_device, "cuMemcpyHtoDAsync_v2");
    find(to_host, "cuMemcpyDtoH_v2");
    find(copy, "cuMemcpyDtoDAsync_v2");
    find(fill, "cuMemsetD8Async");
    find(launch, "cuLaunchKernel");
    find(encode_map, "cuTensorMapEncodeTiled");
    find(begin_capture, "cuStreamBeginCapture_v2");
    find(end_capture, "cuStreamEndCapture");
    find(is_capturing, "cuStreamIsCapturing");
    find(instantiate, "cuGraphInstantiateWithFlags");
    find(launch_graph, "cuGraphLaunch");
    find(destroy_graph, "cuGraphDestroy");
    find(destroy_executable, "cuGraphExecDestroy");
    find_new_functions();
  }
  // The library stays open: other libraries of the process may have threads in it.
  ~Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  Result (*init)(unsigned) = nullptr;
  Result (*error_text)(Result, const char**) = nullptr;
  Result (*device_count)(int*) = nullptr;
  Result (*device_get)(int*, int) = nullptr;
  Result (*device_name)(char*, int, int) = nullptr;
  Result (*device_uuid)(Uuid*, int) = nullptr;
  Result (*device_attribute)(int*, int, int) = nullptr;
  Result (*create_pool)(void**, const PoolProperties*) = nullptr;
  Result (*destroy_pool)(void*) = nullptr;
  Result (*pool_attribute)(void*, int, void*) = nullptr;
  Result (*retain_context)(void**, int) = nullptr;
  Result (*release_context)(int) = nullptr;
  Result (*set_context)(void*) = nullptr;
  Result (*get_context)(void**) = nullptr;
  Result (*priorities)(int*, int*) = nullptr;
  Result (*load_module)(void**, const void*) = nullptr;
  Result (*unload_module)(void*) = nullptr;
  Result (*count_functions)(unsigned*, void*) = nullptr;
  Result (*list_functions)(void**, unsigned, void*) = nullptr;
  Result (*load_function)(void*) = nullptr;
  Result (*parameter_info)(void*, std::size_t, std::size_t*, std::size_t*) = nullptr;
  Result (*get_function)(void**, void*, const char*) = nullptr;
  Result (*set_function)(void*, int, int) = nullptr;
  Result (*allocate)(DevicePointer*, std::size_t) = nullptr;
  Result (*free)(DevicePointer) = nullptr;
  Result (*allocate_async)(DevicePointer*, std::size_t, void*, void*) = nullptr;
  Result (*free_async)(DevicePointer, void*) = nullptr;
  Result (*allocate_host)(void**, std::size_t, unsigned) = nullptr;
  Result (*free_host)(void*) = nullptr;
  Result (*create_stream)(void**, unsigned, int) = nullptr;
  Result (*destroy_stream)(void*) = nullptr;
  Result (*synchronize)(void*) = nullptr;
  Result (*wait_event)(void*, void*, unsigned) = nullptr;
  Result (*create_event)(void**, unsigned) = nullptr;
  Result (*destroy_event)(void*) = nullptr;
  Result (*record_event)(void*, void*) = nullptr;
  Result (*query_event)(void*) = nullptr;
  Result (*to_device)(DevicePointer, const void*, std::size_t, void*) = nullptr;
  Result (*to_host)(void*, DevicePointer, std::size_t) = nullptr;
  Result (*copy)(DevicePointer, DevicePointer, std::size_t, void*) = nullptr;
  Result (*fill)(DevicePointer, unsigned char, std::size_t, void*) = nullptr;
  Result (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void*, void**, void**) = nullptr;
  EncodeMap encode_map = nullptr;
  Result (*begin_capture)(void*, int) = nullptr;
  Result (*end_capture)(void*, void**) = nullptr;
  Result (*is_capturing)(void*, int*) = nullptr;
  Result (*instantiate)(void**, void*, unsigned long long) = nullptr;  // NOLINT: the driver's type
  Result (*launch_graph)(void*, void*) = nullptr;
  Result (*destroy_graph)(void*) = nullptr;
  Result (*destroy_executable)(void*) = nullptr;

 private:
  // Looks up what CUDA 12.4 and newer have.
  void find_new_functions() {
    look_up(count_functions, "cuModuleGetFunctionCount");
    look_up(list_functions, "cuModuleEnumerateFunctions");
    look_up(load_function, "cuFuncLoad");
    look_up(parameter_info, "cuFuncGetParamInfo");
  }
  // Finds a function; null if there is none.
  template <typename Function>
  void look_up(Function*& function, const char* symbol) {
    function = reinterpret_cast<Function*>(is_emulated_ ? emulated::find_function(symbol)
                                                        : ::dlsym(handle_, symbol));
  }

  bool is_emulated_;
  void* handle_;
};

}  // namespace contextile::cuda
