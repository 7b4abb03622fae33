// Hooks for tests of the executor; nothing else includes this.
#pragma once

#include <functional>

#include "contextile/advanced/executor.h"
#include "runtime/flight_recorder.h"

namespace contextile {

struct ExecutorTesting {
  // Makes every later call first fill its staging, accumulator and conversion memory with NaN:
  // nothing may depend on what a buffer held before.
  static void poison_buffers(Executor& executor);

  // Calls `observer` on the rank's thread before every later step it takes.
  static void before_step(Executor& executor, std::function<void(const RecordedStep&)> observer);
};

}  // namespace contextile
