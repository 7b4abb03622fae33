// The end of a server by SIGINT or SIGTERM.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "contextile/serving/completion_server.h"

namespace contextile {

// Makes the first SIGINT or SIGTERM from now on do nothing but be noted, and a second one end the
// process. It lasts until the process ends, because the signal may reach a rank that is already
// ending. It does not use signal masks of threads: libraries have threads of their own, from before
// main.
void note_first_signals();
[[nodiscard]] bool first_signal_has_come();

// Stops the server at the first signal. Once it is gone, a first signal does nothing. If it still
// lives 8 seconds after the signal, because a step of the engines or a request takes so long, it
// ends the process with exit code 3.
class StopOnSignal {
 public:
  explicit StopOnSignal(CompletionServer& server);
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  // Must be called before the server is destroyed. From then on a signal starts the time alone.
  void forget_server();
  [[nodiscard]] bool has_come() const { return has_come_; }

 private:
  void wait_for_signal();

  std::atomic<bool> has_come_ = false;
  int ends_[2] = {-1, -1};
  std::mutex mutex_;
  std::condition_variable ended_;
  CompletionServer* server_;
  bool has_ended_ = false;
  std::thread waiter_;
};

}  // namespace contextile
