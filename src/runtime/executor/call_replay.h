// Captured calls that a rank replays: the same plan, mask, direction and tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/extend/transport.h"
#include "runtime/flight_recorder.h"

namespace contextile {

// Identifies a call by everything that its work depends on.
class CallKey {
 public:
  explicit CallKey(std::size_t mask) { add(mask); }

  void add(const TensorView& view);
  void add(const RowStats& stats);
  void add(const void* data) { add(reinterpret_cast<std::uint64_t>(data)); }
  void add(std::uint64_t word) { words_.push_back(word); }
  template <typename T>
  void add(std::span<T> array) {
    add(static_cast<const void*>(array.data()));
    add(std::uint64_t{array.size()});
  }
  friend bool operator==(const CallKey&, const CallKey&) = default;

 private:
  std::vector<std::uint64_t> words_;
};

[[nodiscard]] CallKey key_of(std::size_t mask, const ForwardTensors& tensors);
[[nodiscard]] CallKey key_of(std::size_t mask, const BackwardTensors& tensors);

class CallReplay {
 public:
  // The transport must outlive it.
  explicit CallReplay(Transport& transport)
      : graphs_(transport.graphs()), control_(transport.control()) {}
  ~CallReplay() { forget_all(); }
  CallReplay(const CallReplay&) = delete;
  CallReplay& operator=(const CallReplay&) = delete;

  // Returns true if the transport can keep calls; the answer is the same on all ranks of a group.
  [[nodiscard]] bool is_possible() const { return graphs_ != nullptr; }
  // Collective. Replays the call if all ranks know it by one number. Otherwise it runs the call,
  // and keeps it if all ranks are willing: by then all have seen theirs before, unless first calls
  // are kept. A call that takes memory that outlives it is never kept. Returns the call's stats,
  // and whether it ran. The messages between ranks are exchanges in the recorder.
  struct Outcome {
    ExecutionStats stats;
    bool was_run = false;
  };
  enum class Keep : std::uint8_t { kNever, kIfAllDo };
  Outcome call(const CallKey& key, Keep keep, FlightRecorder& recorder,
               const std::function<ExecutionStats()>& run);
  // Call this when the plan, or memory, is about to go.
  void forget_all();

 private:
  // Most calls that are known at once, the latest used; layers of a model have tensors of their
  // own.
  static constexpr std::size_t kMostCalls = 256;
  struct Known {
    CallKey key;
    std::int64_t number = 0;  // 0: not kept
    ExecutionStats stats;     // of the run that was kept
  };
  // The message that a rank sends the others about a call.
  struct Said {
    std::int64_t number = 0;
    std::int64_t is_willing = 0;
  };
  // Moves the call's entry to the front of all others; returns true if it is new.
  bool find(const CallKey& key);
  void forget(Known& known);

  CallGraphs* const graphs_;
  Transport& control_;
  std::list<Known> calls_;  // the one that was used last first
};

}  // namespace contextile
