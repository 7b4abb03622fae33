#include "gpu/libcuda.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/file_bytes.h"
#include "contextile/base.h"
#include "gpu/driver_library.h"
#include "gpu/emulated/find_function.h"
#include "gpu/loaded_modules.h"
#include "gpu/module_file.h"

namespace contextile::cuda {
namespace {

DevicePointer pointer_to(const std::byte* memory) {
  return reinterpret_cast<DevicePointer>(memory);
}
std::byte* memory_at(DevicePointer pointer) { return reinterpret_cast<std::byte*>(pointer); }

std::string library_name(const std::string& given) {
  return given.empty() ? "libcuda.so.1" : given;
}

// Writes a UUID like nvidia-smi does: GPU-8f6c2ad1-….
std::string text_of(const Uuid& uuid) {
  std::string text = fmt::format("{:02x}", fmt::join(uuid, ""));
  for (const std::size_t at : {20, 16, 12, 8}) text.insert(at, "-");
  return "GPU-" + text;
}

class GpuDriver : public Driver {
 public:
  explicit GpuDriver(const DeviceOptions& options) : cuda_(library_name(options.library)) {
    check("cuInit", cuda_.init(0));
    int count = 0;
    check("cuDeviceGetCount", cuda_.device_count(&count));
    CONTEXTILE_CHECK(0 <= options.ordinal && options.ordinal < count,
                     "cuda: expected a device below {}, found {}", count, options.ordinal);
    check("cuDeviceGet", cuda_.device_get(&device_, options.ordinal));
    std::array<char, 256> name{};
    check("cuDeviceGetName",
          cuda_.device_name(name.data(), static_cast<int>(name.size()) - 1, device_));
    name_ = name.data();
    Uuid uuid{};
    check("cuDeviceGetUuid", cuda_.device_uuid(&uuid, device_));
    identity_ = text_of(uuid);
    std::int32_t major = 0;
    std::int32_t minor = 0;
    check("cuDeviceGetAttribute", cuda_.device_attribute(&major, kMajor, device_));
    check("cuDeviceGetAttribute", cuda_.device_attribute(&minor, kMinor, device_));
    std::int32_t max_shared = 0;
    check("cuDeviceGetAttribute", cuda_.device_attribute(&max_shared, kMaxShared, device_));
    modules_.set_max_shared_bytes(max_shared);
    const ModuleFiles files =
        find_modules(options,
                     options.library == emulated::kLibrary ? emulated_architectures()
                                                           : architectures_for(major, minor),
                     fmt::format("{} (compute capability {}.{})", name_, major, minor));
    check("cuDevicePrimaryCtxRetain", cuda_.retain_context(&context_, device_));
    try {
      const Current current(*this);
      make_pool();
      for (const auto& [module, file] : files) modules_.load(module, file);
    } catch (...) {
      if (const Current current(*this, std::nothrow); current) unload();
      cuda_.release_context(device_);
      throw;
    }
  }

  ~GpuDriver() override {
    if (const Current current(*this, std::nothrow); current) {
      for (const OpenStream& stream : streams_) {
        if (!stream.is_ours) continue;
        cuda_.synchronize(stream.handle);
        cuda_.destroy_stream(stream.handle);
      }
      for (void* event : events_) cuda_.destroy_event(event);
      for (KeptGraph& graph : graphs_) give_back(graph);
      for (const Chunk& chunk : chunks_) {
        cuda_.destroy_event(chunk.free);
        cuda_.free_host(chunk.memory);
      }
      unload();
    }
    cuda_.release_context(device_);
  }
  GpuDriver(const GpuDriver&) = delete;
  GpuDriver& operator=(const GpuDriver&) = delete;

  [[nodiscard]] std::string_view device_name() const override { return name_; }
  [[nodiscard]] std::string_view device_identity() const override { return identity_; }

  [[nodiscard]] std::byte* allocate(std::int64_t bytes) override {
    const Current current(*this);
    DevicePointer pointer = 0;
    check("cuMemAlloc", cuda_.allocate(&pointer, static_cast<std::size_t>(bytes)));
    return memory_at(pointer);
  }
  void free(std::byte* memory) noexcept override {
    if (const Current current(*this, std::nothrow); current) cuda_.free(pointer_to(memory));
  }
  [[nodiscard]] std::byte* allocate_on(Stream stream, std::int64_t bytes) override {
    const Current current(*this);
    if (is_captured(stream)) return allocate_in_capture(bytes);
    DevicePointer pointer = 0;
    check("cuMemAllocFromPoolAsync",
          cuda_.allocate_async(&pointer, static_cast<std::size_t>(bytes), pool_, handle(stream)));
    return memory_at(pointer);
  }
  void free_on(Stream stream, std::byte* memory) override {
    if (is_of_a_graph(memory)) return;
    if (const Current current(*this, std::nothrow); current) {
      cuda_.free_async(pointer_to(memory), handle(stream));
    }
  }

  using Driver::create_stream;
  [[nodiscard]] Stream create_stream(Priority priority) override {
    const Current current(*this);
    int least = 0;
    int greatest = 0;
    check("cuCtxGetStreamPriorityRange", cuda_.priorities(&least, &greatest));
    void* stream = nullptr;
    check("cuStreamCreateWithPriority",
          cuda_.create_stream(&stream, kNonBlocking,
                              priority == Priority::kUrgent ? greatest : least));
    const std::lock_guard lock(mutex_);
    return add_stream({stream, true});
  }
  [[nodiscard]] Stream adopt_stream(void* native) override {
    const std::lock_guard lock(mutex_);
    for (std::size_t s = 0; s < streams_.size(); ++s) {
      if (streams_[s].handle == native) return {static_cast<std::int32_t>(s)};
    }
    return add_stream({native, false});
  }
  [[nodiscard]] Event create_event() override {
    void* event = new_event();
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
    return {static_cast<std::int32_t>(events_.size() - 1)};
  }
  void record(Event event, Stream stream) override {
    const Current current(*this);
    const auto mine = turn();
    check("cuEventRecord", cuda_.record_event(handle(event), handle(stream)));
  }
  void wait(Stream stream, Event event) override {
    const Current current(*this);
    const auto mine = turn();
    check("cuStreamWaitEvent", cuda_.wait_event(handle(stream), handle(event), 0));
  }

  void write(Stream stream, std::byte* to, std::span<const std::byte> from) override {
    if (from.empty()) return;
    const Current current(*this);
    const bool is_kept = is_captured(stream);
    Chunk chunk = is_kept ? new_chunk(from.size()) : take_chunk(from.size());
    std::memcpy(chunk.memory, from.data(), from.size());
    {
      const auto mine = turn();
      check("cuMemcpyHtoDAsync",
            cuda_.to_device(pointer_to(to), chunk.memory, from.size(), handle(stream)));
      if (!is_kept) check("cuEventRecord", cuda_.record_event(chunk.free, handle(stream)));
    }
    const std::lock_guard lock(mutex_);
    (is_kept ? capture_.chunks : chunks_).push_back(chunk);
  }
  void copy(Stream stream, std::byte* to, const std::byte* from, std::int64_t bytes) override {
    const Current current(*this);
    const auto mine = turn();
    check("cuMemcpyDtoDAsync", cuda_.copy(pointer_to(to), pointer_to(from),
                                          static_cast<std::size_t>(bytes), handle(stream)));
  }
  void fill(Stream stream, std::byte* to, std::uint8_t value, std::int64_t bytes) override {
    const Current current(*this);
    const auto mine = turn();
    check("cuMemsetD8Async",
          cuda_.fill(pointer_to(to), value, static_cast<std::size_t>(bytes), handle(stream)));
  }
  void launch(Stream stream, const Grid& grid, std::span<const std::byte> arguments,
              const std::function<Access()>& /*access*/) override {
    const Current current(*this);
    const auto mine = turn();
    void* argument = const_cast<std::byte*>(arguments.data());  // the driver only reads it
    const auto size = [](std::int32_t count) { return static_cast<unsigned>(count); };
    check(grid.kernel, cuda_.launch(modules_.function(grid, arguments.size()), size(grid.blocks_x),
                                    size(grid.blocks_y), 1, size(grid.threads), 1, 1,
                                    size(grid.shared_bytes), handle(stream), &argument, nullptr));
  }

  [[nodiscard]] bool has_module(std::string_view module) const override {
    return modules_.has(module);
  }
  [[nodiscard]] BoxMap map_boxes(const BoxSource& source) override {
    BoxMap map;
    const Current current(*this);
    check("cuTensorMapEncodeTiled", encode_map(cuda_.encode_map, source, map));
    return map;
  }

  void begin_capture(Stream stream) override {
    const Current current(*this);
    const std::lock_guard lock(mutex_);
    CONTEXTILE_CHECK(!is_capturing_, "cuda: expected no capture under way, found one");
    check("cuStreamBeginCapture", cuda_.begin_capture(handle_of(stream), kRelaxed));
    is_capturing_ = true;
  }
  [[nodiscard]] Graph end_capture(Stream stream) override {
    const Current current(*this);
    const std::lock_guard lock(mutex_);
    is_capturing_ = false;
    void* captured = nullptr;
    KeptGraph kept = std::exchange(capture_, {});
    try {
      check("cuStreamEndCapture", cuda_.end_capture(handle_of(stream), &captured));
      check("cuGraphInstantiate", cuda_.instantiate(&kept.executable, captured, 0));
    } catch (...) {
      if (captured != nullptr) cuda_.destroy_graph(captured);
      give_back(kept);
      throw;
    }
    cuda_.destroy_graph(captured);
    if (free_graphs_.empty()) {
      graphs_.emplace_back();
      free_graphs_.push_back(graphs_.size() - 1);
    }
    const std::size_t place = free_graphs_.back();
    free_graphs_.pop_back();
    graphs_[place] = std::move(kept);
    return {static_cast<std::int32_t>(place)};
  }
  void drop_capture(Stream stream) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!is_capturing_.exchange(false)) return;
    const Current current(*this, std::nothrow);
    if (!current) return;
    void* captured = nullptr;
    cuda_.end_capture(handle_of(stream), &captured);
    if (captured != nullptr) cuda_.destroy_graph(captured);
    give_back(capture_);
  }
  void launch_graph(Stream stream, Graph graph) override {
    const Current current(*this);
    const std::lock_guard lock(mutex_);
    check("cuGraphLaunch",
          cuda_.launch_graph(graphs_.at(static_cast<std::size_t>(graph.id)).executable,
                             handle_of(stream)));
  }
  void free_graph(Graph graph) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto place = static_cast<std::size_t>(graph.id);
    if (const Current current(*this, std::nothrow); current) give_back(graphs_[place]);
    free_graphs_.push_back(place);
  }

  [[nodiscard]] bool is_done(Event event) override {
    const Current current(*this);
    const Result state = cuda_.query_event(handle(event));
    if (state != kNotReady) check("cuEventQuery", state);
    return state == kSuccess;
  }
  void within(const std::function<void()>& work) override {
    const Current current(*this);
    work();
  }
  [[nodiscard]] void* native(Stream stream) override { return handle(stream); }

  void synchronize(Stream stream) override {
    const Current current(*this);
    check("cuStreamSynchronize", cuda_.synchronize(handle(stream)));
  }
  void read(Stream stream, std::span<std::byte> to, const std::byte* from) override {
    synchronize(stream);
    if (to.empty()) return;
    const Current current(*this);
    check("cuMemcpyDtoH", cuda_.to_host(to.data(), pointer_to(from), to.size()));
  }

 private:
  // Page-locked memory from which a write goes to the device, and the event that says it is free
  // again.
  struct Chunk {
    void* memory = nullptr;
    std::size_t bytes = 0;
    void* free = nullptr;  // an event
  };
  // An executable graph, and the memory and chunks that only it reads and writes.
  struct KeptGraph {
    void* executable = nullptr;
    std::vector<std::byte*> memory = {};
    std::vector<Chunk> chunks = {};
  };
  struct OpenStream {
    void* handle = nullptr;
    bool is_ours = true;
  };

  void check(std::string_view call, Result result) const {
    if (result == kSuccess) return;
    const char* text = nullptr;
    if (cuda_.error_text(result, &text) != kSuccess || text == nullptr) text = "unknown error";
    throw DeviceError(fmt::format("{}: {}: {} (CUDA error {})", name_.empty() ? "cuda" : name_,
                                  call, text, result));
  }
  // Serializes calls of several threads into one capture, because the driver does not protect a
  // graph under construction. Without a capture the lock is not taken and no call waits.
  [[nodiscard]] std::unique_lock<std::mutex> turn() {
    std::unique_lock lock(capture_mutex_, std::defer_lock);
    if (is_capturing_) lock.lock();
    return lock;
  }
  [[nodiscard]] bool is_captured(Stream stream) {
    if (!is_capturing_) return false;
    int status = kNotCaptured;
    check("cuStreamIsCapturing", cuda_.is_capturing(handle(stream), &status));
    return status != kNotCaptured;
  }
  // Allocates outside of streams, because they give no memory in a capture. The memory lives as
  // long as its graph.
  [[nodiscard]] std::byte* allocate_in_capture(std::int64_t bytes) {
    std::byte* const memory = allocate(bytes);
    const std::lock_guard lock(mutex_);
    capture_.memory.push_back(memory);
    graph_memory_.insert(memory);
    return memory;
  }
  [[nodiscard]] bool is_of_a_graph(const std::byte* memory) {
    const std::lock_guard lock(mutex_);
    return graph_memory_.contains(memory);
  }
  // Frees everything a graph keeps. Needs the lock and the device. Freeing memory waits for work
  // that uses it.
  void give_back(KeptGraph& kept) noexcept {
    if (kept.executable != nullptr) cuda_.destroy_executable(kept.executable);
    for (std::byte* memory : kept.memory) {
      cuda_.free(pointer_to(memory));
      graph_memory_.erase(memory);
    }
    for (const Chunk& chunk : kept.chunks) {
      cuda_.destroy_event(chunk.free);
      cuda_.free_host(chunk.memory);
    }
    kept = {};
  }
  // While it lives, this device's context is the calling thread's current one. The context from
  // before is the thread's again afterwards, because other libraries may rely on it.
  class Current {
   public:
    explicit Current(const GpuDriver& driver) : Current(driver, std::nothrow) {
      if (!is_set_) driver.check("cuCtxSetCurrent", result_);
    }
    Current(const GpuDriver& driver, std::nothrow_t) noexcept : cuda_(driver.cuda_) {
      result_ = cuda_.get_context(&before_);
      if (result_ == kSuccess && before_ != driver.context_) {
        result_ = cuda_.set_context(driver.context_);
        is_changed_ = result_ == kSuccess;
      }
      is_set_ = result_ == kSuccess;
    }
    ~Current() {
      if (is_changed_) cuda_.set_context(before_);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
    explicit operator bool() const { return is_set_; }

   private:
    const Library& cuda_;
    void* before_ = nullptr;
    Result result_ = kSuccess;
    bool is_set_ = false;
    bool is_changed_ = false;
  };

  // Makes a pool that keeps the memory that streams free, for the next allocations. The device's
  // own pool is left alone, because other libraries allocate from it.
  void make_pool() {
    PoolProperties properties;
    properties.device = device_;
    check("cuMemPoolCreate", cuda_.create_pool(&pool_, &properties));
    std::uint64_t everything = UINT64_MAX;
    check("cuMemPoolSetAttribute", cuda_.pool_attribute(pool_, kReleaseThreshold, &everything));
  }

  // Frees the modules and the pool. Needs the device.
  void unload() noexcept {
    modules_.unload();
    if (pool_ != nullptr) cuda_.destroy_pool(std::exchange(pool_, nullptr));
  }

  // Needs the lock.
  Stream add_stream(OpenStream stream) {
    streams_.push_back(stream);
    return {static_cast<std::int32_t>(streams_.size() - 1)};
  }

  [[nodiscard]] void* new_event() const {
    const Current current(*this);
    void* event = nullptr;
    check("cuEventCreate", cuda_.create_event(&event, kNoTiming));
    return event;
  }

  Chunk take_chunk(std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      for (auto at = chunks_.begin(); at != chunks_.end(); ++at) {
        if (at->bytes < bytes) continue;
        const Result state = cuda_.query_event(at->free);
        if (state == kNotReady) continue;
        check("cuEventQuery", state);
        const Chunk chunk = *at;
        chunks_.erase(at);
        return chunk;
      }
    }
    return new_chunk(std::max(bytes, kPinnedBytes));
  }
  // Makes a chunk of exactly this size: a graph keeps its chunks, so they should not be larger than
  // what it uploads.
  [[nodiscard]] Chunk new_chunk(std::size_t bytes) const {
    Chunk chunk{nullptr, bytes, new_event()};
    check("cuMemHostAlloc", cuda_.allocate_host(&chunk.memory, chunk.bytes, 0));
    return chunk;
  }

  [[nodiscard]] void* handle(Stream stream) {
    const std::lock_guard lock(mutex_);
    return handle_of(stream);
  }
  // Needs the lock.
  [[nodiscard]] void* handle_of(Stream stream) const {
    return streams_.at(static_cast<std::size_t>(stream.id)).handle;
  }
  [[nodiscard]] void* handle(Event event) {
    const std::lock_guard lock(mutex_);
    return events_.at(static_cast<std::size_t>(event.id));
  }

  Library cuda_;
  std::string name_;
  std::string identity_;
  int device_ = 0;
  void* context_ = nullptr;
  std::mutex mutex_;
  void* pool_ = nullptr;
  LoadedModules modules_{cuda_,
                         [this](std::string_view call, Result result) { check(call, result); }};
  std::vector<OpenStream> streams_;
  std::vector<void*> events_;
  std::vector<Chunk> chunks_;  // that no call is filling
  std::mutex capture_mutex_;
  std::atomic<bool> is_capturing_ = false;
  KeptGraph capture_;  // what the capture under way needs
  std::vector<KeptGraph> graphs_;
  std::vector<std::size_t> free_graphs_;  // places of graphs_ that are free
  std::set<const std::byte*> graph_memory_;
};

}  // namespace

std::int32_t count_devices(const std::string& library) {
  const Library cuda(library_name(library));
  int count = 0;
  if (cuda.init(0) != kSuccess || cuda.device_count(&count) != kSuccess) return 0;
  return count;
}

std::unique_ptr<Driver> open_device(const DeviceOptions& options) {
  return std::make_unique<GpuDriver>(options);
}

}  // namespace contextile::cuda
