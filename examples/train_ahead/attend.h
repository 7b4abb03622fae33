// One rank's attention layer of a step: random tensors, forward, backward, the oracle's verdict.
#pragma once

#include <cstdint>

#include "contextile/advanced/oracle.h"
#include "contextile/contextile.h"

struct Attended {
  double seconds = 0;  // forward and backward
  double max_error =
      0;  // of this rank's rows, relative to the largest true value; 0 if not checked
};

// Collective. The executor has been prepared with the plan of that step.
[[nodiscard]] Attended attend(contextile::Executor& executor, const contextile::Plan& plan,
                              contextile::Rank rank, const contextile::Workload& workload,
                              std::uint64_t seed, bool check);
