// A device as the executor's parts see it: memory, streams whose work runs in order, events between
// them, launches. One implementation drives a GPU, another records and runs on the CPU in tests.
//
// Nothing here waits for the device but `synchronize` and `read`.
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

// What a launch reads and writes; a place it adds to is in both.
struct Access {
  std::vector<Rows> reads;
  std::vector<Rows> writes;
};

// A kernel of the module, by the name of its entry point, and the shape of its launch.
struct Grid {
  std::string_view kernel;
  std::int32_t blocks_x = 1;
  std::int32_t blocks_y = 1;
  std::int32_t threads = 1;       // of a block
  std::int32_t shared_bytes = 0;  // dynamic
};

// Calls of several threads may run side by side, those that name one stream one after another.
// Throws DeviceError.
class Driver {
 public:
  virtual ~Driver() = default;

  // "NVIDIA H200", …
  [[nodiscard]] virtual std::string_view device_name() const = 0;

  // Aligned to 256 bytes. `free` waits for no work: what used the memory must be done.
  [[nodiscard]] virtual std::byte* allocate(std::int64_t bytes) = 0;
  virtual void free(std::byte* memory) noexcept = 0;
  // Memory that exists for work on the stream from here on, and up to here.
  [[nodiscard]] virtual std::byte* allocate_on(Stream stream, std::int64_t bytes) = 0;
  virtual void free_on(Stream stream, std::byte* memory) = 0;

  [[nodiscard]] virtual Stream create_stream() = 0;
  // A stream of another library of this device by its handle (CUstream; null: the default one). It
  // stays theirs; the same one has the same name every time.
  [[nodiscard]] virtual Stream adopt_stream(void* native) = 0;
  [[nodiscard]] virtual Event create_event() = 0;
  // The event stands for all work on the stream up to here; work on a stream after `wait` begins
  // when that is done. An event may be recorded again: waits are for what was recorded last.
  virtual void record(Event event, Stream stream) = 0;
  virtual void wait(Stream stream, Event event) = 0;

  // In the order of the stream. `from` is read before `write` returns.
  virtual void write(Stream stream, std::byte* to, std::span<const std::byte> from) = 0;
  // Rows of one length in all: as many bytes on both sides.
  virtual void copy(Stream stream, const Rows& to, const Rows& from) = 0;
  virtual void fill(Stream stream, std::byte* to, std::uint8_t value, std::int64_t bytes) = 0;
  // `arguments` is the kernel's only parameter, read before `launch` returns; `access` is asked
  // only by drivers that check the order of work.
  virtual void launch(Stream stream, const Grid& grid, std::span<const std::byte> arguments,
                      const std::function<Access()>& access) = 0;

  // Whether kernels of a module can be launched.
  [[nodiscard]] virtual bool has_module(std::string_view module) const = 0;
  [[nodiscard]] virtual BoxMap map_boxes(const BoxSource& source) = 0;

  // From here on the stream's work is kept instead of done, as is that of every stream that waits
  // for an event of it. One capture at a time. Until it ends, nothing may wait for such a stream or
  // event, nor may a stream that takes part wait for work before the capture. What is allocated on
  // a captured stream belongs to the graph and stays until that is freed; what is written to it is
  // kept with it.
  virtual void begin_capture(Stream stream) = 0;
  // The stream has waited for what the others that take part hold.
  [[nodiscard]] virtual Graph end_capture(Stream stream) = 0;
  // Ends a capture that is of no use, whatever state it is in; nothing where there is none.
  virtual void drop_capture(Stream stream) noexcept = 0;
  // All that was captured, as one piece of work of the stream.
  virtual void launch_graph(Stream stream, Graph graph) = 0;
  // Its work that was given to streams is done, or ordered before what these are given now.
  virtual void free_graph(Graph graph) noexcept = 0;

  // Whether everything that the event stands for is done.
  [[nodiscard]] virtual bool is_done(Event event) = 0;
  // Makes the device the calling thread's, for other libraries.
  virtual void enter() = 0;
  // The stream as other libraries of the device know it (CUstream).
  [[nodiscard]] virtual void* native(Stream stream) = 0;

  // Waits for the stream. `read` does, and then copies.
  virtual void synchronize(Stream stream) = 0;
  virtual void read(Stream stream, std::span<std::byte> to, const std::byte* from) = 0;
};

// The streams of one rank: attention and row operations on one, transfers on the other.
struct RankStreams {
  explicit RankStreams(Driver& of)
      : driver(of), compute(of.create_stream()), moves(of.create_stream()) {}

  Driver& driver;
  Stream compute;
  Stream moves;
};

// Bytes in device memory for work on one stream, freed behind it.
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
