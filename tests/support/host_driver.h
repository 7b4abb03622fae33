// A device that is this machine's CPU: kernels run in loops (host_cta.h). Work either happens at
// once, or is recorded, checked for races, and run late, in an order that only streams and events
// restrict.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "gpu/driver.h"
#include "gpu/emulated/captured_work.h"

namespace contextile::cuda {

class HostDriver : public Driver {
 public:
  enum class Mode : std::uint8_t { kAtOnce, kRecorded };

  explicit HostDriver(Mode mode, std::uint64_t seed = 0) : mode_(mode), rng_(seed) {}
  ~HostDriver() override;
  HostDriver(const HostDriver&) = delete;
  HostDriver& operator=(const HostDriver&) = delete;

  [[nodiscard]] std::string_view device_name() const override { return "host"; }
  [[nodiscard]] std::string_view device_identity() const override { return "GPU-host"; }
  [[nodiscard]] std::byte* allocate(std::int64_t bytes) override;
  void free(std::byte* memory) noexcept override;
  [[nodiscard]] std::byte* allocate_on(Stream stream, std::int64_t bytes) override;
  void free_on(Stream stream, std::byte* memory) override;
  using Driver::create_stream;
  [[nodiscard]] Stream create_stream(Priority priority) override;
  [[nodiscard]] Stream adopt_stream(void* native) override;
  [[nodiscard]] Event create_event() override;
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;
  void write(Stream stream, std::byte* to, std::span<const std::byte> from) override;
  void copy(Stream stream, std::byte* to, const std::byte* from, std::int64_t bytes) override;
  void fill(Stream stream, std::byte* to, std::uint8_t value, std::int64_t bytes) override;
  void launch(Stream stream, const Grid& grid, std::span<const std::byte> arguments,
              const std::function<Access()>& access) override;
  [[nodiscard]] bool has_module(std::string_view /*module*/) const override { return true; }
  [[nodiscard]] BoxMap map_boxes(const BoxSource& source) override;
  // Captures are kept as they are recorded. Every launch of a graph adds its operations again, so
  // that races between them and with others are seen. Calls that a capture forbids throw a
  // DeviceError.
  void begin_capture(Stream stream) override;
  [[nodiscard]] Graph end_capture(Stream stream) override;
  void drop_capture(Stream stream) noexcept override;
  void launch_graph(Stream stream, Graph graph) override;
  void free_graph(Graph graph) noexcept override;
  // Runs all work that can run.
  [[nodiscard]] bool is_done(Event event) override;
  void within(const std::function<void()>& work) override { work(); }
  [[nodiscard]] void* native(Stream stream) override;
  void synchronize(Stream stream) override;
  void read(Stream stream, std::span<std::byte> to, const std::byte* from) override;

  // Errors of the work so far, in words; empty if there are none. If nothing orders two operations,
  // neither may write what the other touches. Nothing may touch memory before it is taken or behind
  // its end.
  [[nodiscard]] std::vector<std::string> races() const;
  // How often a thread has waited for the device.
  [[nodiscard]] std::int64_t num_synchronizations() const { return num_synchronizations_; }
  [[nodiscard]] std::int64_t num_operations() const {
    return static_cast<std::int64_t>(ops_.size());
  }
  [[nodiscard]] std::int64_t num_graph_launches() const { return num_graph_launches_; }
  // Recorded mode: how often streams were given work; a graph counts once.
  [[nodiscard]] std::int64_t num_calls() const { return num_operations() - num_replayed_; }
  // Number of operations whose name begins like that.
  [[nodiscard]] std::int64_t count(std::string_view name) const;
  // For messages between streams, in recorded mode. A group of `num_transfers` transfers is one
  // operation of the stream, done when they are. A transfer connects two groups that have both
  // begun.
  std::size_t add_group(Stream stream, std::int64_t num_transfers);
  void add_transfer(std::size_t group, std::size_t other, const Rows& to, const Rows& from);

  // For testing this class: waits of such streams are forgotten.
  void forget_waits_of(std::function<bool(Stream)> forgotten) { forgotten_ = std::move(forgotten); }

 private:
  using Intervals = std::vector<std::pair<std::uintptr_t, std::uintptr_t>>;  // disjoint, ascending

  static constexpr std::size_t kNone = SIZE_MAX;

  struct Op {
    std::string name;
    Stream stream;                   // none: a transfer between groups
    std::vector<std::size_t> after;  // operations that come first
    std::int64_t num_open = 0;       // more of them that are not known yet
    Intervals reads;
    Intervals writes;
    std::function<void()> run;  // null once it has
  };
  // The work of an operation when its graph is launched.
  struct Kept {
    std::string name;
    Intervals reads;
    Intervals writes;
    std::function<void()> run;
  };
  using Capture = CapturedWork<std::int32_t, Kept>;
  struct KeptGraph {
    std::vector<Capture::Node> nodes;
    std::vector<std::byte*> memory;
  };
  // The latest record: an operation, or a node of a capture.
  struct Recorded {
    std::size_t op = kNone;
    std::size_t capture = kNone;  // its number
    std::size_t node = kNone;
  };
  struct Block {
    std::int64_t bytes = 0;
    std::size_t end = kNone;  // the operation that ends it
  };
  // Needs the lock.
  std::size_t add(std::string name, Stream stream, const Access& access, std::function<void()> run,
                  std::size_t also_after = kNone);
  void run_ready();
  std::byte* take(std::int64_t bytes);
  [[nodiscard]] bool is_captured(Stream stream) const {
    return capture_ && capture_->has(stream.id);
  }
  void wait_in_capture(Stream stream, const Recorded& recorded);
  void refuse_in_capture(std::string_view what, Stream stream) const;
  // Appends, in words, the accesses of an operation to memory that is not there at that time.
  void check_memory(std::size_t op, const std::vector<bool>& before,
                    std::vector<std::string>& faults) const;
  [[nodiscard]] bool is_ready(const Op& op) const;
  // True if i comes before j, [i * operations + j].
  [[nodiscard]] std::vector<bool> orders() const;

  const Mode mode_;
  mutable std::mutex mutex_;
  std::condition_variable added_;
  Rng rng_;
  std::vector<std::size_t> streams_;  // the last operation of each
  Stream default_stream_;             // none: not used yet
  std::vector<Recorded> events_;
  std::optional<Capture> capture_;  // under way
  std::vector<std::byte*> captured_memory_;
  std::vector<KeptGraph> graphs_;
  std::size_t num_captures_ = 0;
  std::set<std::byte*> graph_memory_;
  std::vector<Op> ops_;
  std::vector<std::size_t> waiting_;  // operations that have not run
  std::map<std::uintptr_t, Block> blocks_;
  std::vector<std::string> faults_;
  std::int64_t num_synchronizations_ = 0;
  std::int64_t num_graph_launches_ = 0;
  std::int64_t num_replayed_ = 0;  // operations that graphs have added, except one of each
  std::function<bool(Stream)> forgotten_;
};

}  // namespace contextile::cuda
