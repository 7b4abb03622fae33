// A driver library as libcuda.so.1 is: the emulated driver of src/gpu/emulated, with what only
// tests need. Modules may also be files that begin as ELF, or as a comment, with the module's name
// behind, or compiled kernels; their kernels run in loops (host_grid.h). Everything must be
// released before the last context is. Faults of PTX are printed, and what ran, when the process
// ends.
//
// Environment: CONTEXTILE_PTX_TIMING=at-once completes asynchronous work at once instead of late;
// CONTEXTILE_PTX_SEED is the seed of the first block; opcodes that ran are added to the file
// CONTEXTILE_PTX_OPCODES. With CONTEXTILE_FAKE_DEVICE_HAS_ALL_MEMORY all memory of the process
// counts as the device's, for tests whose tensors come from another allocator.
// CONTEXTILE_FAKE_DEVICES=N makes the device count as N devices of UUIDs of their own.
// CONTEXTILE_FAKE_CAPABILITY=8.6 gives it another compute capability, with the shared memory of
// such a device.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "gpu/emulated/device.h"
#include "gpu/emulated/functions.h"
#include "support/host_grid.h"

using namespace contextile::emulated;  // NOLINT(google-build-using-namespace): C functions

namespace {

// The module that scripts/cuda-kernels compiles a kernel into.
std::string module_of_function(std::string_view name) {
  for (const char* module : {"rows", "paged", "wgmma"}) {
    if (name.starts_with(std::string(module) + "_")) return module;
  }
  return "mma";
}

class HostModules : public OtherModules {
 public:
  [[nodiscard]] bool knows(std::string_view image) const override {
    const bool is_ptx = image.find(".version") != std::string_view::npos &&
                        image.find(".target") != std::string_view::npos;
    return image.starts_with(kElf) || (image.starts_with("// ") && !is_ptx);
  }
  [[nodiscard]] bool has(std::string_view image, std::string_view kernel) const override {
    image.remove_prefix(image.starts_with("//") ? 3 : kElf.size());
    constexpr char kOf64Bits = 2;  // a compiled module, which may have any function
    return image.empty() || image.starts_with(kOf64Bits) || image == module_of_function(kernel);
  }
  [[nodiscard]] std::size_t argument_bytes(std::string_view kernel) const override {
    return contextile::cuda::argument_bytes(kernel);
  }
  void run(const contextile::cuda::Grid& grid,
           std::span<const std::byte> arguments) const override {
    contextile::cuda::run_on_host(grid, arguments);
  }

 private:
  static constexpr std::string_view kElf =
      "\x7f"
      "ELF";
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The number after the dot or the one before it, in a compute capability; 9.0 unless told else.
int capability(bool is_minor) {
  const std::string text = variable("CONTEXTILE_FAKE_CAPABILITY");
  if (text.empty()) return is_minor ? 0 : 9;
  return std::stoi(is_minor ? text.substr(text.find('.') + 1) : text);
}

// The bytes that the CUDA C++ programming guide lists for the compute capability.
int most_shared_bytes() {
  const int major = capability(false);
  const int minor = capability(true);
  if (major == 8) return minor == 0 || minor == 7 ? 166'912 : 101'376;
  return major == 12 ? 101'376 : 232'448;
}

int num_devices() {
  const std::string text = variable("CONTEXTILE_FAKE_DEVICES");
  return text.empty() ? 1 : std::stoi(text);
}

// All devices are the emulated one, whose handle is the first one's.
int first_device() {
  int first = 0;
  static_cast<void>(device_get(&first, 0));
  return first;
}
int emulated_device(int which) {
  const int ordinal = which - first_device();
  return 0 <= ordinal && ordinal < num_devices() ? first_device() : -1;
}

// Sets the device up for tests, and prints what its machine did.
class Session {
 public:
  Session() {
    Device& own = device();
    own.name = "a CPU";
    own.others = &modules_;
    own.has_all_memory = std::getenv("CONTEXTILE_FAKE_DEVICE_HAS_ALL_MEMORY") != nullptr;
    own.largest_allocation = std::size_t{1} << 30;
    own.machine.most_instructions = 40'000'000;
    if (variable("CONTEXTILE_PTX_TIMING") == "at-once")
      own.machine.timing = contextile::ptx::Timing::kAtOnce;
    if (const std::string seed = variable("CONTEXTILE_PTX_SEED"); !seed.empty()) {
      own.machine.seed = std::strtoull(seed.c_str(), nullptr, 10);
    }
    opcodes_file_ = variable("CONTEXTILE_PTX_OPCODES");
    if (!opcodes_file_.empty()) own.machine.opcodes = &opcodes_;
  }
  ~Session() {
    if (!opcodes_file_.empty()) {
      std::ofstream file(opcodes_file_, std::ios::app);
      for (const std::string& opcode : opcodes_) file << opcode << '\n';
    }
    if (device().machine.num_instructions == 0) return;
    fmt::print(stderr, "ptx: {} launches, {} warp instructions\n", device().num_launches,
               device().machine.num_instructions);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  const HostModules modules_;
  std::string opcodes_file_;
  std::set<std::string> opcodes_;
};

// Prints the fault of a call that had one.
Result with_report(Result result) {
  if (result != kLaunchFailed && result != kInvalidImage) return result;
  const char* text = nullptr;
  error_text(result, &text);
  fmt::print(stderr, "ptx: {}\n", text);
  std::fflush(stderr);
  return result;
}

int num_missed_functions = 0;
int num_copies = 0;
int num_launches = 0;
int num_loaded_functions = 0;

}  // namespace

extern "C" {

Result cuInit(unsigned flags) {
  static Session session;
  return init(flags);
}
Result cuGetErrorString(Result error, const char** text) { return error_text(error, text); }
Result cuDeviceGetCount(int* count) {
  *count = num_devices();
  return kSuccess;
}
Result cuDeviceGet(int* device, int ordinal) {
  *device = first_device() + ordinal;
  return emulated_device(*device) < 0 ? kInvalidValue : kSuccess;
}
Result cuDeviceGetName(char* name, int size, int device) {
  return device_name(name, size, emulated_device(device));
}
Result cuDeviceGetUuid_v2(contextile::cuda::Uuid* uuid, int device) {
  const Result result = device_uuid(uuid, emulated_device(device));
  uuid->back() = static_cast<unsigned char>(device - first_device());
  return result;
}
Result cuDeviceGetAttribute(int* value, int attribute, int device) {
  const Result result = device_attribute(value, attribute, emulated_device(device));
  if (attribute == contextile::cuda::kMajor) *value = capability(false);
  if (attribute == contextile::cuda::kMinor) *value = capability(true);
  if (attribute == contextile::cuda::kMaxShared) *value = most_shared_bytes();
  return result;
}
Result cuMemPoolCreate(void** pool, const contextile::cuda::PoolProperties* properties) {
  contextile::cuda::PoolProperties of_device = *properties;
  of_device.device = emulated_device(properties->device);
  return create_pool(pool, &of_device);
}
Result cuMemPoolDestroy(void* pool) { return destroy_pool(pool); }
Result cuMemPoolSetAttribute(void* pool, int attribute, void* value) {
  return pool_attribute(pool, attribute, value);
}
Result cuDevicePrimaryCtxRetain(void** context, int device) {
  return retain_context(context, emulated_device(device));
}
Result cuDevicePrimaryCtxRelease_v2(int which) {
  {
    const std::lock_guard lock(device().mutex);
    if (device().num_holders == 1 && !device().is_empty()) std::abort();
  }
  return release_context(emulated_device(which));
}
Result cuCtxSetCurrent(void* context) { return set_context(context); }
Result cuCtxGetCurrent(void** context) { return get_context(context); }
Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return priorities(least, greatest);
}
Result cuModuleLoadData(void** module, const void* image) {
  return with_report(load_module(module, image));
}
Result cuModuleUnload(void* module) { return unload_module(module); }
Result cuModuleGetFunction(void** function, void* module, const char* name) {
  const Result result = with_report(get_function(function, module, name));
  if (result == kNotFound) ++num_missed_functions;
  return result;
}
// Number of searches for a function in a module that lacks it. compute-sanitizer counts them as
// errors.
int contextileFakeMissedFunctions() { return num_missed_functions; }
// Numbers of copies within the device, and of launches of kernels.
int contextileFakeCopies() { return num_copies; }
int contextileFakeLaunches() { return num_launches; }
// Number of functions that were loaded before a launch asked for them.
int contextileFakeLoadedFunctions() { return num_loaded_functions; }
// Every module has one function.
Result cuModuleGetFunctionCount(unsigned* count, void* /*module*/) {
  *count = 1;
  return kSuccess;
}
Result cuModuleEnumerateFunctions(void** functions, unsigned count, void* module) {
  if (count != 1) return kInvalidValue;
  *functions = module;
  return kSuccess;
}
Result cuFuncLoad(void* /*function*/) {
  ++num_loaded_functions;
  return kSuccess;
}
Result cuFuncSetAttribute(void* function, int attribute, int value) {
  if (value > most_shared_bytes()) return kInvalidValue;
  return set_function(function, attribute, value);
}
Result cuFuncGetParamInfo(void* function, std::size_t index, std::size_t* offset,
                          std::size_t* bytes) {
  return parameter_info(function, index, offset, bytes);
}
Result cuMemAlloc_v2(DevicePointer* pointer, std::size_t bytes) { return allocate(pointer, bytes); }
Result cuMemFree_v2(DevicePointer pointer) { return contextile::emulated::free(pointer); }
Result cuMemAllocFromPoolAsync(DevicePointer* pointer, std::size_t bytes, void* pool,
                               void* stream) {
  return allocate_async(pointer, bytes, pool, stream);
}
Result cuMemFreeAsync(DevicePointer pointer, void* stream) { return free_async(pointer, stream); }
Result cuMemHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  return allocate_host(memory, bytes, flags);
}
Result cuMemFreeHost(void* memory) { return free_host(memory); }
Result cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  return create_stream(stream, flags, priority);
}
Result cuStreamGetPriority(void* stream, int* priority) {
  return guarded([&] {
    const auto found = device().streams.find(stream);
    if (found == device().streams.end()) return kInvalidHandle;
    *priority = found->second;
    return kSuccess;
  });
}
Result cuStreamDestroy_v2(void* stream) { return destroy_stream(stream); }
Result cuStreamSynchronize(void* stream) { return synchronize(stream); }
Result cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  return wait_event(stream, event, flags);
}
Result cuEventCreate(void** event, unsigned flags) { return create_event(event, flags); }
Result cuEventDestroy_v2(void* event) { return destroy_event(event); }
Result cuEventRecord(void* event, void* stream) { return record_event(event, stream); }
Result cuEventQuery(void* event) { return query_event(event); }
Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, std::size_t bytes, void* stream) {
  return to_device(to, from, bytes, stream);
}
Result cuMemcpyDtoH_v2(void* to, DevicePointer from, std::size_t bytes) {
  return to_host(to, from, bytes);
}
Result cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, std::size_t bytes, void* stream) {
  ++num_copies;
  return copy(to, from, bytes, stream);
}
Result cuMemsetD8Async(DevicePointer to, unsigned char value, std::size_t bytes, void* stream) {
  return fill(to, value, bytes, stream);
}
Result cuTensorMapEncodeTiled(void* map, int type, std::uint32_t rank, void* data,
                              const std::uint64_t* sizes, const std::uint64_t* strides,
                              const std::uint32_t* box, const std::uint32_t* every, int interleave,
                              int swizzle, int promotion, int fill) {
  return encode_map(map, type, rank, data, sizes, strides, box, every, interleave, swizzle,
                    promotion, fill);
}
Result cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads,
                      unsigned threads_y, unsigned threads_z, unsigned shared, void* stream,
                      void** arguments, void** extra) {
  ++num_launches;
  return with_report(
      launch(function, x, y, z, threads, threads_y, threads_z, shared, stream, arguments, extra));
}
Result cuStreamBeginCapture_v2(void* stream, int mode) { return begin_capture(stream, mode); }
Result cuStreamEndCapture(void* stream, void** graph) { return end_capture(stream, graph); }
Result cuStreamIsCapturing(void* stream, int* status) { return is_capturing(stream, status); }
Result cuGraphInstantiateWithFlags(void** executable, void* graph,
                                   unsigned long long flags) {  // NOLINT: the driver's type
  return instantiate(executable, graph, flags);
}
Result cuGraphLaunch(void* executable, void* stream) {
  return with_report(launch_graph(executable, stream));
}
Result cuGraphDestroy(void* graph) { return destroy_graph(graph); }
Result cuGraphExecDestroy(void* executable) { return destroy_executable(executable); }

}  // extern "C"
