// Words of layouts and schedules that options of strategies are made of (strategies.h).
#pragma once

#include <cstdint>

namespace contextile {

// Which tokens a rank holds.
enum class TokenLayout : std::uint8_t {
  kZigzag,  // every sequence in 2R chunks, rank r has chunks r and 2R-1-r (Megatron, TE, Llama 3)
  kContiguous,   // every sequence in R chunks, rank r has chunk r (RingAttention)
  kPerDocument,  // zigzag whose chunks differ by at most one token, remainders dealt round-robin
                 // over documents (WLB-LLM's per-document sharding, no padding)
  kPerSequence,  // the packed batch as one sequence in 2R chunks (WLB-LLM's per-sequence sharding)
};

// When partial results leave the device that computed them.
enum class ResultTiming : std::uint8_t {
  kAfter,  // when all attention is done, as DCP's Listing 3 has it
  kEarly,  // as soon as a device has computed its last tile of the unit
};

}  // namespace contextile
