// How a caller ends work of the library that takes long, and waits.
//
//   const InterruptScope scope([&] { if (stop_requested) throw std::runtime_error("stopped"); });
//   const PlannedBatch planned = plan_batch(workload, cluster, choice);  // may throw that
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>

namespace contextile {

// While one lives, whatever its thread computes or waits for in the library calls the check now and
// then, a waiting thread at least every 0.2 s. An exception of the check leaves the function that
// was called. A group of ranks then fails as if this rank had thrown an error of its own: peers get
// a TransportError that names this rank, and so does the next use of the transport here. A store
// stays usable.
//
// The check is called on the scope's own thread, without locks. Threads that the library uses for
// the same call stop with it. Scopes nest: only the innermost check is called. The exception shall
// derive from std::exception, whose text peers get, but not from Error: functions that try several
// ways go on after an Error.
class InterruptScope {
 public:
  using Check = std::function<void()>;

  explicit InterruptScope(Check check);
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  // Calls the check if it is due and this is the scope's own thread. Throws what the check threw,
  // here or earlier.
  void look();
  // Returns true on the scope's own thread.
  [[nodiscard]] bool is_of_this_thread() const { return std::this_thread::get_id() == owner_; }

 private:
  const Check check_;
  const std::thread::id owner_;
  InterruptScope* const outer_;
  std::chrono::steady_clock::time_point next_look_;  // used by the scope's own thread alone
  std::exception_ptr thrown_;                        // set before has_thrown_
  std::atomic<bool> has_thrown_ = false;
};

}  // namespace contextile
