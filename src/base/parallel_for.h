// Loops whose iterations run side by side. Rooms that have one link oneTBB.
#pragma once

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/interrupt.h"

#ifdef CONTEXTILE_THREAD_SANITIZER
#include <sanitizer/tsan_interface.h>
#endif

namespace contextile {

#ifdef CONTEXTILE_THREAD_SANITIZER

// Tells ThreadSanitizer what oneTBB orders. oneTBB's library is built without it, so it does not
// see that everything before the loop comes before every iteration, and every iteration before
// everything after the loop. Iterations remain unordered among each other, so that races between
// them are reported.
template <typename Index, typename Work>
class OrderedTurns {
 public:
  explicit OrderedTurns(const Work& work) : work_(work) { __tsan_release(begun()); }
  ~OrderedTurns() { __tsan_acquire(ended()); }
  OrderedTurns(const OrderedTurns&) = delete;
  OrderedTurns& operator=(const OrderedTurns&) = delete;

  void operator()(Index i) const {
    __tsan_acquire(begun());  // before anything of the loop is read, even this object
    const End end{ended()};
    work_(i);
  }

 private:
  struct End {
    void* address;
    ~End() { __tsan_release(address); }
  };

  // Only the addresses count: nothing is read or written there.
  [[nodiscard]] void* begun() const { return const_cast<OrderedTurns*>(this); }
  [[nodiscard]] void* ended() const { return static_cast<char*>(begun()) + 8; }

  const Work& work_;
  [[maybe_unused]] const char room_[8] = {};  // for the second address
};

#endif

// The exception of the first iteration that threw, by its index and not by time.
template <typename Index>
class FirstFailure {
 public:
  explicit FirstFailure(Index end) : index_(end) {}

  [[nodiscard]] bool is_before(Index i) const { return index_.load() < i; }
  // Keeps the exception that is being handled unless an earlier iteration's is kept.
  void keep(Index i) {
    const std::lock_guard lock(mutex_);
    if (i >= index_.load()) return;
    index_ = i;
    error_ = std::current_exception();
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::atomic<Index> index_;
  std::exception_ptr error_;
};

// Calls work(i) for every i in [begin, end), in any order and on any of oneTBB's threads, and
// returns when all calls are done. If some throw, the exception of the lowest i is thrown here once
// no other call runs, so errors do not depend on threads; calls of higher i may be left out. An
// InterruptScope of this thread ends the loop between calls, on whatever thread they run, and
// within those that look.
template <typename Index, typename Work>
void parallel_for(Index begin, Index end, const Work& work) {
  InterruptScope* const interrupt = current_interrupt();
  FirstFailure<Index> failure(end);
  const auto turn = [&](Index i) {
    if (failure.is_before(i)) return;
    const InterruptLoan loan(interrupt);
    try {
      check_interrupt();
      work(i);
    } catch (...) {
      failure.keep(i);
    }
  };
#ifdef CONTEXTILE_THREAD_SANITIZER
  tbb::parallel_for(begin, end, OrderedTurns<Index, decltype(turn)>(turn));
#else
  tbb::parallel_for(begin, end, turn);
#endif
  failure.rethrow();
}

// Calls work(), which has loops of few and long iterations. The thread that waits for the last of
// them does not look. So on the own thread of an InterruptScope the work runs on another thread,
// which borrows the scope, while this one looks.
inline void look_during(const std::function<void()>& work) {
  InterruptScope* const interrupt = current_interrupt();
  // In an arena of one thread, all iterations run on this one, and look.
  const bool is_alone = tbb::this_task_arena::max_concurrency() == 1;
  if (interrupt == nullptr || !interrupt->is_of_this_thread() || is_alone) return work();
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;
  const auto run = [&] {
    const InterruptLoan loan(interrupt);
    try {
      work();
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  };
  std::thread worker;
  try {
    worker = std::thread(run);
  } catch (const std::system_error&) {  // no more threads can be had
    return work();
  }
  try {
    std::unique_lock lock(mutex);
    static_cast<void>(wait_until(changed, lock, Clock::time_point::max(), [&] { return done; }));
  } catch (...) {  // what the check threw ends the work, too
    worker.join();
    throw;
  }
  worker.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace contextile
