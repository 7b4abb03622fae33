// The end of a server by SIGINT or SIGTERM.
#pragma once

#include <csignal>
#include <optional>
#include <thread>

#include "contextile/serving/completion_server.h"

namespace contextile {

// A handler that does nothing.
inline void ignore_signal(int) {}

// While one lives, the first SIGINT or SIGTERM does what the handler does, and a second one ends
// the process. It does not use signal masks of threads: libraries have threads of their own, from
// before main.
class FirstSignals {
 public:
  explicit FirstSignals(void (*handler)(int));
  ~FirstSignals();
  FirstSignals(const FirstSignals&) = delete;
  FirstSignals& operator=(const FirstSignals&) = delete;

 private:
  struct sigaction before_[2] = {};
};

// Stops the server at the first signal.
class StopOnSignal {
 public:
  explicit StopOnSignal(CompletionServer& server);
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

 private:
  int ends_[2] = {-1, -1};
  std::optional<FirstSignals> signals_;
  std::thread waiter_;
};

}  // namespace contextile
