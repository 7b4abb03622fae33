// ByteScale's hybrid data parallelism.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/strategy.h"
#include "strategy/schedule/groups.h"

namespace contextile {

// Load by which the least loaded ranks are chosen.
enum class RankChoice : std::uint8_t {
  kTokens,
  kFlops,  // causal: the square of the length
};

struct WaveOptions {
  std::int32_t num_ranks = 1;
  std::int64_t cap_tokens = 0;  // C, tokens of one rank and wave
  RankChoice choice = RankChoice::kTokens;
};

// Schedules sequences in waves. Source: ByteScale (2025) as FCP describes it. A sequence of L > C
// tokens takes ceil(L / C) ranks; the others are packed into bins of C tokens, each for one rank
// (first fit, longest first). Each of them, longest first, goes to the consecutive ranks that are
// free in the current wave and have the least total load over all waves (ties: the lowest ranks).
// If there are none, a new wave begins. `lengths` are positive tokens. Throws InvalidArgument when
// L > R·C. O(sequences · (bins + R)).
[[nodiscard]] std::vector<ScheduleRound> schedule_bytescale(std::span<const std::int64_t> lengths,
                                                            const WaveOptions& options);

[[nodiscard]] const Strategy& bytescale_strategy();

}  // namespace contextile
