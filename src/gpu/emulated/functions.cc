#include "gpu/emulated/functions.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>

#include "gpu/emulated/device.h"
#include "gpu/emulated/find_function.h"

namespace contextile::emulated {
namespace {

constexpr int kDevice = 7;  // the only device's handle

template <typename Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

void* find_function(const char* symbol) {
  static const std::map<std::string_view, void*> kAll = {
      {"cuInit", address(init)},
      {"cuGetErrorString", address(error_text)},
      {"cuDeviceGetCount", address(device_count)},
      {"cuDeviceGet", address(device_get)},
      {"cuDeviceGetName", address(device_name)},
      {"cuDeviceGetUuid_v2", address(device_uuid)},
      {"cuDeviceGetAttribute", address(device_attribute)},
      {"cuMemPoolCreate", address(create_pool)},
      {"cuMemPoolDestroy", address(destroy_pool)},
      {"cuMemPoolSetAttribute", address(pool_attribute)},
      {"cuDevicePrimaryCtxRetain", address(retain_context)},
      {"cuDevicePrimaryCtxRelease_v2", address(release_context)},
      {"cuCtxSetCurrent", address(set_context)},
      {"cuCtxGetCurrent", address(get_context)},
      {"cuCtxGetStreamPriorityRange", address(priorities)},
      {"cuModuleLoadData", address(load_module)},
      {"cuModuleUnload", address(unload_module)},
      {"cuModuleGetFunction", address(get_function)},
      {"cuFuncSetAttribute", address(set_function)},
      {"cuFuncGetParamInfo", address(parameter_info)},
      {"cuMemAlloc_v2", address(allocate)},
      {"cuMemFree_v2", address(free)},
      {"cuMemAllocFromPoolAsync", address(allocate_async)},
      {"cuMemFreeAsync", address(free_async)},
      {"cuMemHostAlloc", address(allocate_host)},
      {"cuMemFreeHost", address(free_host)},
      {"cuStreamCreateWithPriority", address(create_stream)},
      {"cuStreamDestroy_v2", address(destroy_stream)},
      {"cuStreamSynchronize", address(synchronize)},
      {"cuStreamWaitEvent", address(wait_event)},
      {"cuEventCreate", address(create_event)},
      {"cuEventDestroy_v2", address(destroy_event)},
      {"cuEventRecord", address(record_event)},
      {"cuEventQuery", address(query_event)},
      {"cuMemcpyHtoDAsync_v2", address(to_device)},
      {"cuMemcpyDtoH_v2", address(to_host)},
      {"cuMemcpyDtoDAsync_v2", address(copy)},
      {"cuMemsetD8Async", address(fill)},
      {"cuLaunchKernel", address(launch)},
      {"cuTensorMapEncodeTiled", address(encode_map)},
      {"cuStreamBeginCapture_v2", address(begin_capture)},
      {"cuStreamEndCapture", address(end_capture)},
      {"cuStreamIsCapturing", address(is_capturing)},
      {"cuGraphInstantiateWithFlags", address(instantiate)},
      {"cuGraphLaunch", address(launch_graph)},
      {"cuGraphDestroy", address(destroy_graph)},
      {"cuGraphExecDestroy", address(destroy_executable)},
  };
  const auto found = kAll.find(symbol);
  return found == kAll.end() ? nullptr : found->second;
}

Result init(unsigned flags) {
  const std::lock_guard lock(device().mutex);
  device().is_initialized = flags == 0;
  return flags == 0 ? kSuccess : kInvalidValue;
}

Result error_text(Result error, const char** text) {
  static thread_local std::string fault;
  *text = error == kOutOfMemory ? "out of memory" : "invalid argument";
  if (error != kLaunchFailed && error != kInvalidImage) return kSuccess;
  const std::lock_guard lock(device().mutex);
  fault = device().last_fault;
  *text = fault.c_str();
  return kSuccess;
}

Result device_count(int* count) {
  *count = 1;
  return kSuccess;
}

Result device_get(int* device, int ordinal) {
  *device = kDevice;
  return ordinal == 0 ? kSuccess : kInvalidValue;
}

Result device_name(char* name, int size, int which) {
  if (which != kDevice || size < 1) return kInvalidValue;
  const std::string& all = device().name;
  const std::size_t length = std::min(all.size(), static_cast<std::size_t>(size - 1));
  std::memcpy(name, all.data(), length);
  name[length] = '\0';
  return kSuccess;
}

// There is one device, which no other process sees.
Result device_uuid(cuda::Uuid* uuid, int which) {
  *uuid = {};
  return which == kDevice ? kSuccess : kInvalidValue;
}

// The compute capability is 9.0, and blocks have the shared memory of such a device.
Result device_attribute(int* value, int attribute, int which) {
  if (which != kDevice) return kInvalidValue;
  switch (attribute) {
    case cuda::kMajor:
      *value = 9;
      return kSuccess;
    case cuda::kMinor:
      *value = 0;
      return kSuccess;
    case cuda::kMaxShared:
      *value = kMaxSharedBytes;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

Result retain_context(void** context, int which) {
  const std::lock_guard lock(device().mutex);
  ++device().num_holders;
  *context = &device();
  return which == kDevice ? kSuccess : kInvalidValue;
}

Result release_context(int which) {
  const std::lock_guard lock(device().mutex);
  --device().num_holders;
  return which == kDevice ? kSuccess : kInvalidValue;
}

Result set_context(void* context) {
  if (context != nullptr && context != &device()) return kInvalidValue;
  current_context() = context;
  return kSuccess;
}

Result get_context(void** context) {
  *context = current_context();
  return kSuccess;
}

Result priorities(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return current_context() == nullptr ? kNoContext : kSuccess;
}

}  // namespace contextile::emulated
