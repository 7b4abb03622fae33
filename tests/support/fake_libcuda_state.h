// The state of the driver library in fake_libcuda.cc, and what its functions share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/captured_work.h"
#include "support/ptx/machine.h"

namespace contextile::fake_cuda {

using Result = int;
using DevicePointer = unsigned long long;
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kNoContext = 201;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotFound = 500;
inline constexpr Result kLaunchFailed = 719;
inline constexpr Result kNotSupported = 801;
inline constexpr Result kCaptureUnsupported = 900;
inline constexpr Result kCaptureUnmatched = 903;
inline constexpr Result kCaptureUnjoined = 904;
inline constexpr Result kCaptureIsolation = 905;
inline constexpr Result kCapturedEvent = 907;
inline constexpr std::size_t kLargestPitch = (std::size_t{1} << 31) - 1;
inline constexpr std::size_t kLargestAllocation = std::size_t{1} << 30;
inline constexpr int kSharedWithoutAsking = 49152;

using Capture = contextile::cuda::CapturedWork<void*, std::function<Result()>>;
struct Graph {
  std::vector<Capture::Node> nodes;
};

struct State {
  std::mutex mutex;
  bool initialized = false;
  int num_holders = 0;
  int num_missed_functions = 0;
  int context = 0;                               // its address is the context
  std::map<std::uintptr_t, std::size_t> device;  // allocations
  std::set<void*> events, pinned, pools;
  std::map<void*, int> streams;          // and their priorities
  std::map<void*, std::string> modules;  // and their names
  std::map<void*, const contextile::ptx::Module*> ptx_modules;
  std::map<std::string, int> shared;  // dynamic bytes that a function is set up for
  std::map<std::string, const contextile::ptx::Kernel*> ptx_kernels;  // by function
  std::optional<Capture> capture;                                     // under way; one at a time
  int num_captures = 0;
  std::map<void*, std::pair<int, std::size_t>> captured_events;  // a node of which capture
  std::set<Graph*> graphs;                                       // and executable ones
};
inline State& state() {
  static State all;
  return all;
}
inline thread_local void* current = nullptr;

// True for this library's streams and the default one.
inline bool is_stream(void* stream) {
  return stream == nullptr || state().streams.contains(stream);
}

// In tests whose tensors come from an allocator that does not know this device, all memory counts
// as the device's.
inline bool all_memory_counts() {
  return std::getenv("CONTEXTILE_FAKE_DEVICE_HAS_ALL_MEMORY") != nullptr;
}

inline bool is_device(DevicePointer pointer, std::size_t bytes) {
  if (all_memory_counts()) return true;
  auto at = state().device.upper_bound(static_cast<std::uintptr_t>(pointer));
  if (at == state().device.begin()) return false;
  --at;
  return pointer + bytes <= at->first + at->second;
}

// Runs work with the lock and a context.
template <typename Work>
Result guarded(const Work& work) {
  const std::lock_guard lock(state().mutex);
  if (!state().initialized) return kNotInitialized;
  if (current == nullptr) return kNoContext;
  return work();
}

inline bool is_captured(void* stream) { return state().capture && state().capture->has(stream); }

// Does the work, or keeps it. Needs the lock.
inline Result on_stream(void* stream, std::function<Result()> work) {
  if (!is_captured(stream)) return work();
  state().capture->add(stream, std::move(work));
  return kSuccess;
}

}  // namespace contextile::fake_cuda
