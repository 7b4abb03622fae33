// What planning would make, estimated before it is made: a slip of the keyboard ("--block-size 1")
// can ask for more than any machine holds.
#pragma once

#include <cstdint>

#include "contextile/cluster.h"
#include "contextile/workload.h"

namespace contextile {

// Blocks as small as the smallest that strategies choose by themselves.
inline constexpr std::int64_t kSmallestDefaultBlock = 512;

// Tiles of all masks and one direction in blocks of `block_size` tokens, about: attended pairs over
// the pairs of a block pair, and the blocks along the edges of sequences and bands. O(bands).
[[nodiscard]] double estimated_tiles(const Workload& workload, std::int64_t block_size);

// What planning is meant for; beyond it minutes and gigabytes go by.
inline constexpr double kMostTiles = 2e8;
inline constexpr double kMostDevicePairs = 2e8;
inline constexpr std::int32_t kMostKvHeads = 1024;

// Throws InvalidArgument with the number of tiles or devices, what would fit and which block size
// gives it, when a plan would have more than kMostTiles tiles or the cluster more than
// kMostDevicePairs ordered pairs of devices that may send to each other; with more than
// kMostKvHeads KV heads, each of which may be placed for itself. A block size of 0 is the
// strategy's own.
void check_plan_size(const Workload& workload, const Cluster& cluster, std::int64_t block_size);

}  // namespace contextile
