// Times work that several ranks do at the same time.
#pragma once

#include <cstdint>
#include <functional>

#include "contextile/extend/transport.h"

namespace contextile {

// The time that counts if ranks are processes, each with a clock of its own.
enum class TimeOfRanks : std::uint8_t {
  kSlowest,  // for work that ends for all together: messages
  kMean,     // for work that each does alone
};

struct TimingEffort {
  double sample_s = 0.02;  // calls are repeated until a sample takes about that long
  std::int32_t samples = 5;
  // Processes: seconds of calls made before each sample, so that a machine that shares out its
  // cores by quotas has none saved up.
  double settle_s = 0;
  TimeOfRanks time = TimeOfRanks::kSlowest;
};

// Seconds per call when every rank of an in-process group makes the same number of calls, all at
// once: the time from the first rank's start to the last rank's end, divided by the number of
// calls. Returns the fastest of the samples, since other programs only ever slow one down.
// `prepare` runs once on every rank and returns the call. Exceptions of ranks are rethrown.
[[nodiscard]] double seconds_per_call(
    std::int32_t ranks, const TimingEffort& effort,
    const std::function<std::function<void()>(Transport&)>& prepare);

// Measures the same on the first `ranks` of a group of processes, of which `rank` is this one; the
// others wait. Collective, with the same result on every rank: the fastest sample. A failure of one
// rank ends the group.
[[nodiscard]] double seconds_per_call(
    Transport& rank, std::int32_t ranks, const TimingEffort& effort,
    const std::function<std::function<void()>(Transport&)>& prepare);

// Combines one number from each of the first `ranks` of a group into one. Collective.
[[nodiscard]] double time_of_ranks(Transport& rank, std::int32_t ranks, double mine,
                                   TimeOfRanks time);

}  // namespace contextile
