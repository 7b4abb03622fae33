// A sign of life of a group of ranks in a store, so that a rank that comes back is refused.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "contextile/advanced/store.h"

namespace contextile {

// While it lives, the store says that the run goes on.
class RunBeat {
 public:
  // The store must live longer. Errors of the store are ignored: the beat then stops being seen.
  // `returned` is called, in a thread of its own, with the name of a rank that was refused.
  RunBeat(Store& store, const std::string& run_id,
          std::function<void(const std::string& rank)> returned);

 private:
  std::jthread thread_;  // stops and is joined when the beat ends
};

// Throws TransportError if the store says that the run goes on, which it does without this rank,
// and leaves the rank's name for the server's log. Waits for a few seconds where an earlier run
// left its sign.
void refuse_if_running(Store& store, const std::string& run_id, const std::string& rank);

}  // namespace contextile
