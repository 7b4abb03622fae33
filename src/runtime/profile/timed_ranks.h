// Timing what several ranks do at the same time.
#pragma once

#include <cstdint>
#include <functional>

#include "contextile/extend/transport.h"

namespace contextile {

// Which time counts where ranks are processes, each with a clock of its own.
enum class TimeOfRanks : std::uint8_t {
  kSlowest,  // of what ends for all together: messages
  kMean,     // of what each does alone
};

struct TimingEffort {
  double sample_s = 0.02;  // calls are repeated until a sample takes about that long
  std::int32_t samples = 5;
  // Processes: so long calls are made before each sample, so that a machine that shares its cores
  // out by quotas has none saved up.
  double settle_s = 0;
  TimeOfRanks time = TimeOfRanks::kSlowest;
};

// Seconds of one call when every rank of an in-process group makes the same number of calls, all at
// once: from the first rank's start to the last rank's end, by the number of calls; the fastest of
// the samples, since other programs only ever slow one down. `prepare` runs once on every rank and
// returns the call. What a rank throws is rethrown.
[[nodiscard]] double seconds_per_call(
    std::int32_t ranks, const TimingEffort& effort,
    const std::function<std::function<void()>(Transport&)>& prepare);

// The same by the first `ranks` of a group of processes, of which `rank` is this one; the others
// wait. Collective, with the same result on every rank: the fastest sample. A failure of one rank
// ends the group.
[[nodiscard]] double seconds_per_call(
    Transport& rank, std::int32_t ranks, const TimingEffort& effort,
    const std::function<std::function<void()>(Transport&)>& prepare);

// One number out of one of each of the first `ranks` of a group. Collective.
[[nodiscard]] double time_of_ranks(Transport& rank, std::int32_t ranks, double mine,
                                   TimeOfRanks time);

}  // namespace contextile
