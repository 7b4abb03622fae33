// The partitions of chunks whose fullest rank has the least load.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "strategy/magi/dispatch.h"

namespace contextile {

// Returns the rank of every chunk so that the largest load is the least among all partitions with
// at most `places` chunks per rank. `start` is such a partition, and the result is never worse.
// Every search for a smaller load tries at most kDispatchSteps ranks; one that ends there counts
// as without a result. Deterministic.
[[nodiscard]] std::vector<Rank> exact_dispatch(std::span<const ChunkWork> chunks,
                                               std::int32_t num_ranks, std::int64_t places,
                                               std::vector<Rank> start);

}  // namespace contextile
