// A device as the executor's parts see it: memory, streams whose work runs in order, events between
// them, launches. One implementation drives a GPU; another, for tests, records the work and runs it
// on the CPU.
//
// Only `synchronize` and `read` wait for the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "gpu/box_map.h"

namespace contextile::cuda {

// Names a stream or an event of one driver.
struct Stream {
  std::int32_t id = -1;
  friend bool operator==(Stream, Stream) = default;
};
struct Event {
  std::int32_t id = -1;
  friend bool operator==(Event, Event) = default;
};

// Names work that was captured.
struct Graph {
  std::int32_t id = -1;
};

// Rows of equal length at equal distance in device memory.
struct Rows {
  std::byte* data = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t num_rows = 0;
  std::int64_t stride_bytes = 0;
};

// The memory that a launch reads and writes. Memory that it adds to is in both lists.
struct Access {
  std::vector<Rows> reads;
  std::vector<Rows> writes;
};

// A kernel by its module and the name of its entry point, and the shape of its launch.
struct Grid {
  std::string_view module;
  std::string_view kernel;
  std::int32_t blocks_x = 1;
  std::int32_t blocks_y = 1;
  std::int32_t threads = 1;       // of a block
  std::int32_t shared_bytes = 0;  // dynamic
};

// Work of an urgent stream gets processors before work of others that has not begun.
enum class Priority : std::uint8_t { kNormal, kUrgent };

// A device. Several threads may call it at the same time, except that calls that name the same
// stream must come one after another. Throws DeviceError.
class Driver {
 public:
  virtual ~Driver() = default;

  // The name that the driver reports, for example "NVIDIA H200".
  [[nodiscard]] virtual std::string_view device_name() const = 0;

  // The identity of the device among those of all machines, as "GPU-" and its UUID.
  [[nodiscard]] virtual std::string_view device_identity() const = 0;

  // Memory is aligned to 256 bytes. `free` does not wait: all work that uses the memory must be
  // done.
  [[nodiscard]] virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual void free(std::byte* memory) noexcept = 0;
  // Allocates memory for the work given to the stream from here on; `free_on` frees it after the
  // work given to the stream so far.
  [[nodiscard]] virtual std::byte* allocate_on(Stream stream, std::int64_t bytes) = 0;
  virtual void free_on(Stream stream, std::byte* memory) = 0;

  [[nodiscard]] virtual Stream create_stream(Priority priority) = 0;
  [[nodiscard]] Stream create_stream() { return create_stream(Priority::kNormal); }
  // Returns the name of a stream that another library created on this device, by its handle
  // (CUstream; null: the default stream). The other library keeps owning it. The same handle always
  // has the same name.
  [[nodiscard]] virtual Stream adopt_stream(void* native) = 0;
  [[nodiscard]] virtual Event create_event() = 0;
  // `record` makes the event stand for all work given to the stream so far. Work given to a stream
  // after `wait` begins when that work is done. An event may be recorded again; `wait` refers to
  // the latest recording.
  virtual void record(Event event, Stream stream) = 0;
  virtual void wait(Stream stream, Event event) = 0;

  // These four run in the order of the stream. `from` is read before `write` returns.
  virtual void write(Stream stream, std::byte* to, std::span<const std::byte> from) = 0;
  virtual void copy(Stream stream, std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  virtual void fill(Stream stream, std::byte* to, std::uint8_t value, std::int64_t bytes) = 0;
  // Launches a kernel. `arguments` is the kernel's only parameter and is read before `launch`
  // returns. Only drivers that check the order of work call `access`.
  virtual void launch(Stream stream, const Grid& grid, std::span<const std::byte> arguments,
                      const std::function<Access()>& access) = 0;

  // Returns true if kernels of the module can be launched.
  [[nodiscard]] virtual bool has_module(std::string_view module) const = 0;
  [[nodiscard]] virtual BoxMap map_boxes(const BoxSource& source) = 0;

  // From here on, the stream's work is kept instead of done, and so is the work of every stream
  // that waits for an event of it. There is one capture at a time. Until it ends, nothing may wait
  // for such a stream or event, and a stream that takes part may not wait for work from before the
  // capture. Memory that is allocated on a captured stream belongs to the graph and stays until the
  // graph is freed; data that is written to a captured stream is kept with the graph.
  virtual void begin_capture(Stream stream) = 0;
  // Ends the capture. The stream must have waited for the work of all other streams that take part.
  [[nodiscard]] virtual Graph end_capture(Stream stream) = 0;
  // Ends a capture that is of no use, in whatever state it is. Does nothing if there is no capture.
  virtual void drop_capture(Stream stream) noexcept = 0;
  // Launches all work that was captured as one piece of work of the stream.
  virtual void launch_graph(Stream stream, Graph graph) = 0;
  // Frees a graph. Its launches must be done, or be ordered before all work given to streams from
  // now on.
  virtual void free_graph(Graph graph) noexcept = 0;

  // Returns true if all work that the event stands for is done.
  [[nodiscard]] virtual bool is_done(Event event) = 0;
  // Calls `work` with this device as the calling thread's current one, for other libraries.
  virtual void within(const std::function<void()>& work) = 0;
  // Returns the stream as other libraries of the device know it (CUstream).
  [[nodiscard]] virtual void* native(Stream stream) = 0;

  // `synchronize` waits for the stream. `read` waits for it and then copies.
  virtual void synchronize(Stream stream) = 0;
  virtual void read(Stream stream, std::span<std::byte> to, const std::byte* from) = 0;
};

// The streams of one rank: attention and row operations on one, transfers on the other. Transfers
// are urgent, because a kernel that moves data would otherwise wait until the blocks of an
// attention kernel that began before it have all been handed out.
struct RankStreams {
  explicit RankStreams(Driver& of)
      : driver(of), compute(of.create_stream()), moves(of.create_stream(Priority::kUrgent)) {}

  Driver& driver;
  Stream compute;
  Stream moves;
};

// Device memory for work on one stream. It is freed after the work given to the stream so far.
class StreamMemory {
 public:
  StreamMemory(Driver& driver, Stream stream, std::int64_t bytes)
      : driver_(driver),
        stream_(stream),
        data_(bytes > 0 ? driver.allocate_on(stream, bytes) : nullptr) {}
  ~StreamMemory() {
    if (data_ != nullptr) driver_.free_on(stream_, data_);
  }
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  Driver& driver_;
  Stream stream_;
  std::byte* data_;
};

}  // namespace contextile::cuda
