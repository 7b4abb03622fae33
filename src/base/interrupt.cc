#include "base/interrupt.h"

#include <poll.h>

#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <utility>

namespace contextile {
namespace {

// NOTE: per thread, because scopes are.
thread_local InterruptScope* innermost = nullptr;

}  // namespace

InterruptScope* current_interrupt() noexcept { return innermost; }

InterruptScope::InterruptScope(Check check)
    : check_(std::move(check)),
      owner_(std::this_thread::get_id()),
      outer_(std::exchange(innermost, this)),
      next_look_(Clock::now() + kInterruptPeriod) {}

InterruptScope::~InterruptScope() { innermost = outer_; }

void InterruptScope::look() {
  if (has_thrown_.load(std::memory_order_acquire)) std::rethrow_exception(thrown_);
  if (std::this_thread::get_id() != owner_) return;
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kInterruptPeriod;
  try {
    check_();
  } catch (...) {
    thrown_ = std::current_exception();
    has_thrown_.store(true, std::memory_order_release);
    throw;
  }
}

std::string interrupt_text() {
  try {
    throw;
  } catch (const std::exception& thrown) {
    return thrown.what();
  } catch (...) {
    return "it was interrupted";
  }
}

InterruptLoan::InterruptLoan(InterruptScope* scope) noexcept
    : before_(std::exchange(innermost, scope)) {}
InterruptLoan::~InterruptLoan() { innermost = before_; }

void sleep_for(std::chrono::nanoseconds time) {
  const Clock::time_point end = Clock::now() + time;
  while (true) {
    check_interrupt();
    const Clock::time_point now = Clock::now();
    if (now >= end) return;
    std::this_thread::sleep_for(std::min<Clock::duration>(end - now, kInterruptPeriod));
  }
}

bool poll_until(int descriptor, short events, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    const std::int64_t slice = std::clamp<std::int64_t>(left.count(), 0, kInterruptPeriod.count());
    pollfd polled{descriptor, events, 0};
    if (::poll(&polled, 1, static_cast<int>(slice)) > 0) return true;
    if (Clock::now() >= deadline) return false;
    check_interrupt();
  }
}

}  // namespace contextile
