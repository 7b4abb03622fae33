#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/interrupt.h"
#include "contextile/extend/transport.h"
#include "transport/inproc_group.h"
#include "transport/inproc_transport.h"

namespace contextile {
namespace {

// Keeps the first exception that a rank of a run threw. An echo of another rank's failure is
// rethrown only if no cause was thrown.
class Failures {
 public:
  void add(std::exception_ptr exception, bool is_echo) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::exception_ptr& first = is_echo ? first_echo_ : first_cause_;
    if (!first) first = std::move(exception);
  }
  void rethrow() const {
    if (first_cause_) std::rethrow_exception(first_cause_);
    if (first_echo_) std::rethrow_exception(first_echo_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr first_cause_;
  std::exception_ptr first_echo_;
};

void run_rank(Transport& transport, const std::function<void(Transport&)>& body,
              Failures& failures) {
  try {
    body(transport);
  } catch (const GroupFailed& error) {
    failures.add(std::current_exception(), true);
    transport.abort(error.what());
  } catch (const std::exception& error) {
    failures.add(std::current_exception(), false);
    transport.abort(error.what());
  } catch (...) {
    failures.add(std::current_exception(), false);
    transport.abort("an exception of unknown type");
  }
}

// Counts threads that have ended, for a thread that waits for all of them.
class Ended {
 public:
  void add() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  // Returns when that many have ended. An interrupt of this thread makes them end, too, because
  // they borrow its scope.
  void wait_for(std::size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto all = [&] { return count_ == count; };
    try {
      static_cast<void>(wait_until(changed_, lock, Clock::time_point::max(), all));
    } catch (...) {
      changed_.wait(lock, all);
      throw;
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t count_ = 0;
};

// Calls run(transport) on one thread for each end of a group and joins the threads.
template <typename Ends, typename Run>
void run_threads(Ends& group, const Run& run) {
  InterruptScope* const interrupt = current_interrupt();
  Ended ended;
  std::vector<std::thread> threads;
  const auto join_all = [&] {
    for (std::thread& thread : threads) thread.join();
  };
  try {
    for (auto& transport : group) {
      threads.emplace_back([&, interrupt] {
        const InterruptLoan loan(interrupt);
        run(transport);
        ended.add();
      });
    }
  } catch (...) {  // no more threads can be had: the ranks that run must not wait for the others
    for (std::size_t r = threads.size(); r < group.size(); ++r) {
      group[r]->abort("a thread for this rank could not be started");
    }
    join_all();
    throw;
  }
  try {
    if (interrupt != nullptr) ended.wait_for(threads.size());
  } catch (...) {
    join_all();
    throw;
  }
  join_all();
}

}  // namespace

std::vector<std::unique_ptr<Transport>> make_inproc_group(std::int32_t num_ranks,
                                                          const InprocOptions& options) {
  const auto group = std::make_shared<InprocGroup>(num_ranks, options);
  std::vector<std::unique_ptr<Transport>> transports;
  transports.reserve(static_cast<std::size_t>(group->size()));
  for (std::int32_t r = 0; r < num_ranks; ++r) {
    transports.push_back(std::make_unique<InprocTransport>(group, Rank{r}));
  }
  return transports;
}

void run_inproc(std::int32_t num_ranks, const std::function<void(Transport&)>& body,
                const InprocOptions& options) {
  std::vector<std::unique_ptr<Transport>> transports = make_inproc_group(num_ranks, options);
  Failures failures;
  run_threads(transports, [&](std::unique_ptr<Transport>& transport) {
    run_rank(*transport, body, failures);
    transport.reset();  // so that peers still under way hear that this rank has left
  });
  failures.rethrow();
}

void run_inproc(std::span<const std::unique_ptr<Transport>> group,
                const std::function<void(Transport&)>& body) {
  Failures failures;
  run_threads(group, [&](const std::unique_ptr<Transport>& transport) {
    run_rank(*transport, body, failures);
  });
  failures.rethrow();
}

}  // namespace contextile
