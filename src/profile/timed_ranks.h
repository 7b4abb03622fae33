// Timing what several ranks do at the same time.
#pragma once

#include <cstdint>
#include <functional>

#include "contextile/transport.h"

namespace contextile {

struct TimingEffort {
  double sample_s = 0.02;  // calls are repeated until a sample takes about that long
  std::int32_t samples = 5;
};

// Seconds of one call when every rank of an in-process group makes the same number of calls, all at
// once: from the first rank's start to the last rank's end, by the number of calls; the fastest of
// the samples, since other programs only ever slow one down. `prepare` runs once on every rank and
// returns the call. What a rank throws is rethrown.
[[nodiscard]] double seconds_per_call(
    std::int32_t ranks, const TimingEffort& effort,
    const std::function<std::function<void()>(Transport&)>& prepare);

}  // namespace contextile
