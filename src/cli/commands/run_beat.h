// A sign of life of a group of ranks in a store, so that a rank that comes back is refused.
#pragma once

#include <string>
#include <thread>

#include "contextile/store.h"

namespace contextile {

// While it lives, the store says that the run goes on.
class RunBeat {
 public:
  // The store must live longer. Errors of the store are ignored: the beat then stops being seen.
  RunBeat(Store& store, const std::string& run_id);

 private:
  std::jthread thread_;  // stops and is joined when the beat ends
};

// Throws TransportError if the store says that the run goes on, which it does without this rank.
// Waits for a few seconds where an earlier run left its sign.
void refuse_if_running(Store& store, const std::string& run_id);

}  // namespace contextile
