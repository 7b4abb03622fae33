// Sums over ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/transport.h"

namespace contextile {

// values := their sum over all ranks, added in the order of ranks: the same bits everywhere. A rank
// sums its part of the array and sends it to all, so that it sends 2·(N-1)/N of the array's bytes,
// within an element a peer. All ranks' arrays are equally long.
void all_reduce(Transport& transport, std::span<float> values);

// The parts [splits[r], splits[r + 1]) of values from every rank r to all.
void all_gather(Transport& transport, std::span<float> values,
                std::span<const std::int64_t> splits);

// Borders of N parts of `count` that differ by at most one.
[[nodiscard]] std::vector<std::int64_t> equal_splits(std::int64_t count, std::int32_t num_parts);

}  // namespace contextile
