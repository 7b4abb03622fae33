// Sums over ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/transport.h"

namespace contextile {

// Replaces `values` by their sum over all ranks, added in the order of ranks, so that all ranks get
// the same bits. A rank sums its part of the array and sends the sums to all others. It sends
// 2·(N-1)/N of the array's bytes, within one element per peer. The arrays of all ranks must be
// equally long.
void all_reduce(Transport& transport, std::span<float> values);

// Sends the part [splits[r], splits[r + 1]) of `values` from every rank r to all others.
void all_gather(Transport& transport, std::span<float> values,
                std::span<const std::int64_t> splits);

// Returns the borders of N parts of `count` elements whose sizes differ by at most one.
[[nodiscard]] std::vector<std::int64_t> equal_splits(std::int64_t count, std::int32_t num_parts);

}  // namespace contextile
