// The end of a server by SIGINT or SIGTERM.
#pragma once

#include <thread>

#include "contextile/serving/completion_server.h"

namespace contextile {

// Makes the first SIGINT or SIGTERM from now on do nothing, and a second one end the process. It
// lasts until the process ends, because the signal may reach a rank that is already ending.
// It does not use signal masks of threads: libraries have threads of their own, from before main.
void ignore_first_signals();

// Stops the server at the first signal. Once it is gone, a first signal does nothing.
class StopOnSignal {
 public:
  explicit StopOnSignal(CompletionServer& server);
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

 private:
  int ends_[2] = {-1, -1};
  std::thread waiter_;
};

}  // namespace contextile
