// The emulated device: what its driver's functions (functions.h) share. All work is done when it is
// submitted, or kept while its stream is captured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpu/driver.h"
#include "gpu/driver_library.h"
#include "gpu/emulated/captured_work.h"
#include "gpu/emulated/machine.h"

namespace contextile::emulated {

using cuda::DevicePointer;
using cuda::kSuccess;
using cuda::Result;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kNoContext = 201;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotFound = 500;
inline constexpr Result kLaunchFailed = 719;
inline constexpr Result kNotSupported = 801;
inline constexpr Result kCaptureUnsupported = 900;
inline constexpr Result kCaptureUnmatched = 903;
inline constexpr Result kCaptureUnjoined = 904;
inline constexpr Result kCaptureIsolation = 905;
inline constexpr Result kCapturedEvent = 907;
inline constexpr int kSharedWithoutAsking = 49152;
inline constexpr int kMaxSharedBytes = 232448;

// Modules that are not PTX. Only tests have some, whose kernels they run themselves.
class OtherModules {
 public:
  virtual ~OtherModules() = default;
  // Returns true if the image is such a module.
  [[nodiscard]] virtual bool knows(std::string_view image) const = 0;
  [[nodiscard]] virtual bool has(std::string_view image, std::string_view kernel) const = 0;
  // Bytes of a kernel's argument.
  [[nodiscard]] virtual std::size_t argument_bytes(std::string_view kernel) const = 0;
  // Throws if there is no such kernel.
  virtual void run(const cuda::Grid& grid, std::span<const std::byte> arguments) const = 0;
};

struct Function {
  std::string name;
  const ptx::Kernel* kernel = nullptr;  // null: of OtherModules
  int shared_bytes = kSharedWithoutAsking;
};
struct LoadedModule {
  std::string image;  // of OtherModules
  std::unique_ptr<ptx::Module> ptx;
  std::map<std::string, std::unique_ptr<Function>, std::less<>> functions;
};

using Capture = cuda::CapturedWork<void*, std::function<Result()>>;
struct Graph {
  std::vector<Capture::Node> nodes;
};

// True if all bytes from an address on are the device's, in one allocation or in lent memory.
[[nodiscard]] bool is_memory(std::uint64_t address, std::uint64_t bytes);

struct Device {
  // How tests differ from users.
  std::string name = "emulated GPU";
  const OtherModules* others = nullptr;
  bool has_all_memory = false;  // all memory of the process counts as the device's
  std::size_t largest_allocation = SIZE_MAX / 2;

  std::mutex mutex;
  bool is_initialized = false;
  int num_holders = 0;
  std::map<std::uintptr_t, std::size_t> allocations;
  std::multimap<std::uintptr_t, std::uintptr_t> lent;  // begin and end of memory of the process
  std::map<std::uintptr_t, std::uintptr_t> lent_union;
  std::set<void*> events, pinned, pools;
  std::map<void*, int> streams;  // and their priorities
  std::map<void*, std::unique_ptr<LoadedModule>> modules;
  std::optional<Capture> capture;  // under way; one at a time
  int num_captures = 0;
  std::map<void*, std::pair<int, std::size_t>> captured_events;  // a node of which capture
  std::set<Graph*> graphs;                                       // and executable ones
  ptx::Machine machine{.is_memory = is_memory};
  std::int64_t num_launches = 0;
  std::string last_fault;

  // True if nothing of the last context is left.
  [[nodiscard]] bool is_empty() const {
    return streams.empty() && events.empty() && pinned.empty() && graphs.empty() &&
           modules.empty() && pools.empty() && !capture;
  }
};
// The only device of the process, as drivers have it.
[[nodiscard]] Device& device();
// The context that is current on the calling thread, or null.
[[nodiscard]] void*& current_context();

// True for this driver's streams and the default one.
[[nodiscard]] bool is_stream(void* stream);
[[nodiscard]] bool is_captured(void* stream);

// Does the work, or keeps it. Needs the lock.
[[nodiscard]] Result on_stream(void* stream, std::function<Result()> work);

// Runs work with the lock and a context.
template <typename Work>
Result guarded(const Work& work) {
  const std::lock_guard lock(device().mutex);
  if (!device().is_initialized) return kNotInitialized;
  if (current_context() == nullptr) return kNoContext;
  return work();
}

// Memory of the process that counts as the device's while this lives.
class LentMemory {
 public:
  explicit LentMemory(std::span<const std::byte> memory);
  ~LentMemory();
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;

 private:
  std::uintptr_t begin_;
  std::uintptr_t end_;
};

}  // namespace contextile::emulated
