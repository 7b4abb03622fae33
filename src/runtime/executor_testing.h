// Hooks for tests of the executor; nothing else includes this.
#pragma once

#include "contextile/executor.h"

namespace contextile {

struct ExecutorTesting {
  // From now on every call first fills its staging, accumulator and conversion memory with NaN:
  // nothing may depend on what a buffer held before.
  static void poison_buffers(Executor& executor);
};

}  // namespace contextile
