// Waits and loops that an InterruptScope of the calling thread ends.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/interrupt.h"
#include "contextile/extend/interrupt.h"

namespace contextile {

// Longest time that a wait goes on without a look.
inline constexpr std::chrono::milliseconds kInterruptPeriod{50};

// Returns the innermost scope of this thread, or null.
[[nodiscard]] InterruptScope* current_interrupt() noexcept;

// Throws if the work of this thread shall end. Without a scope it costs a few instructions, with
// one the reading of a clock: it belongs into the loops around inner loops.
inline void check_interrupt() {
  if (InterruptScope* const scope = current_interrupt()) scope->look();
}

// The same for inner loops and the comparisons of a sort: looks at the first of many calls.
class RareInterruptCheck {
 public:
  void operator()() {
    if (num_calls_++ % kPeriod == 0) check_interrupt();
  }

 private:
  static constexpr std::uint32_t kPeriod = 1 << 16;
  std::uint32_t num_calls_ = 0;
};

// Returns the text of the exception that is being handled, for peers.
[[nodiscard]] std::string interrupt_text();

// Makes a scope that of this thread, too: of a thread that works for the scope's owner, who waits
// for it. Null: no scope.
class InterruptLoan {
 public:
  explicit InterruptLoan(InterruptScope* scope) noexcept;
  ~InterruptLoan();
  InterruptLoan(const InterruptLoan&) = delete;
  InterruptLoan& operator=(const InterruptLoan&) = delete;

 private:
  InterruptScope* const before_;
};

// Waits until a notification, the deadline or the next look, whichever comes first; the caller
// looks again at what it waits for. The lock is free during the look, because a check may run code
// that needs the lock. It is held when this returns or throws.
inline void wait_a_while(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                         Clock::time_point deadline) {
  InterruptScope* const scope = current_interrupt();
  if (scope == nullptr) {
    if (deadline == Clock::time_point::max()) return changed.wait(lock);
    changed.wait_until(lock, deadline);
    return;
  }
  changed.wait_until(lock, std::min(deadline, Clock::now() + kInterruptPeriod));
  struct Relock {
    std::unique_lock<std::mutex>& lock;
    ~Relock() { lock.lock(); }
  };
  lock.unlock();
  const Relock relock{lock};
  scope->look();
}

// Waits until is_done() or the deadline. Returns is_done().
template <typename Predicate>
bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                Clock::time_point deadline, const Predicate& is_done) {
  while (!is_done()) {
    if (Clock::now() >= deadline) return false;
    wait_a_while(changed, lock, deadline);
  }
  return true;
}

// Sleeps that long.
void sleep_for(std::chrono::nanoseconds time);

// Waits until a descriptor has one of the events of poll(2). Returns false once the deadline has
// passed. A signal handler that interrupts the wait does not end it.
[[nodiscard]] bool poll_until(int descriptor, short events, Clock::time_point deadline);

}  // namespace contextile
