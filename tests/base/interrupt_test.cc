#include "base/interrupt.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "base/parallel_for.h"

namespace contextile {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

struct Stop {};

// A check that throws once it has been called a few times.
class StopSoon {
 public:
  void operator()() const {
    if (++calls_ >= 2) throw Stop{};
  }

 private:
  mutable int calls_ = 0;
};

TEST(Interrupt, WithoutAScopeNothingIsAsked) {
  EXPECT_EQ(current_interrupt(), nullptr);
  check_interrupt();
}

TEST(Interrupt, EndsAWaitForANotification) {
  const InterruptScope scope{StopSoon()};
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  const auto never = [] { return false; };
  EXPECT_THROW(static_cast<void>(wait_until(changed, lock, Clock::now() + hours(24), never)), Stop);
  EXPECT_TRUE(lock.owns_lock());
}

TEST(Interrupt, TheLockIsFreeDuringACheck) {
  std::mutex mutex;
  bool was_free = false;
  const InterruptScope scope([&] {
    was_free = mutex.try_lock();
    if (was_free) mutex.unlock();
    throw Stop{};
  });
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  const auto never = [] { return false; };
  EXPECT_THROW(static_cast<void>(wait_until(changed, lock, Clock::time_point::max(), never)), Stop);
  EXPECT_TRUE(was_free);
}

TEST(Interrupt, AWaitStillHearsOfNotificationsAndDeadlines) {
  const InterruptScope scope([] {});
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::thread other([&] {
    const std::lock_guard guard(mutex);
    done = true;
    changed.notify_all();
  });
  {
    std::unique_lock lock(mutex);
    const auto is_done = [&] { return done; };
    EXPECT_TRUE(wait_until(changed, lock, Clock::time_point::max(), is_done));
    const auto never = [] { return false; };
    EXPECT_FALSE(wait_until(changed, lock, Clock::now() + milliseconds(1), never));
  }
  other.join();
}

TEST(Interrupt, EndsASleepAndAPoll) {
  const InterruptScope scope{StopSoon()};
  EXPECT_THROW(sleep_for(hours(24)), Stop);
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  EXPECT_THROW(static_cast<void>(poll_until(ends[0], 1, Clock::now() + hours(24))), Stop);
  for (const int end : ends) ::close(end);
}

TEST(Interrupt, APollReturnsItsEventOrTheDeadline) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  EXPECT_FALSE(poll_until(ends[0], 1, Clock::now() + milliseconds(1)));
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  EXPECT_TRUE(poll_until(ends[0], 1, Clock::now()));
  for (const int end : ends) ::close(end);
}

TEST(Interrupt, EndsALoopOverThreads) {
  const InterruptScope scope{StopSoon()};
  const auto work = [](int) {
    while (true) check_interrupt();
  };
  EXPECT_THROW(parallel_for(0, 64, work), Stop);
}

TEST(Interrupt, ThreadsThatBorrowAScopeEndWithIt) {
  std::atomic<bool> ended = false;
  {
    const InterruptScope scope{StopSoon()};
    std::thread other([&ended, lent = current_interrupt()] {
      const InterruptLoan loan(lent);
      try {
        sleep_for(hours(24));
      } catch (const Stop&) {
        ended = true;
      }
    });
    EXPECT_THROW(sleep_for(hours(24)), Stop);
    other.join();
  }
  EXPECT_TRUE(ended);
}

TEST(Interrupt, AnInnerScopeStandsForTheOuterOne) {
  const InterruptScope outer([] { throw Stop{}; });
  {
    const InterruptScope inner([] {});
    sleep_for(2 * kInterruptPeriod);
  }
  {
    const InterruptLoan none(nullptr);
    sleep_for(2 * kInterruptPeriod);
  }
  EXPECT_THROW(sleep_for(hours(24)), Stop);
}

TEST(Interrupt, EndsWorkThatWaitsForAnotherThread) {
  const InterruptScope scope{StopSoon()};
  const std::thread::id me = std::this_thread::get_id();
  std::atomic<bool> has_ended = false;
  EXPECT_THROW(look_during([&] {
                 EXPECT_NE(std::this_thread::get_id(), me);
                 std::thread other([&, interrupt = current_interrupt()] {
                   const InterruptLoan loan(interrupt);
                   try {
                     while (true) check_interrupt();
                   } catch (const Stop&) {
                     has_ended = true;
                   }
                 });
                 other.join();  // as oneTBB waits for the end of a loop
                 check_interrupt();
               }),
               Stop);
  EXPECT_TRUE(has_ended);
}

TEST(Interrupt, WorkThatIsLookedAfterIsDoneOrThrowsItsErrors) {
  int done = 0;
  look_during([&] { ++done; });
  const InterruptScope scope([] {});
  look_during([&] { ++done; });
  EXPECT_EQ(done, 2);
  EXPECT_THROW(look_during([] { throw std::runtime_error("broken"); }), std::runtime_error);
}

}  // namespace
}  // namespace contextile
