// Estimate of the attention time of every rank under a fixed layout, before anything is planned.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/mask.h"
#include "contextile/workload.h"

namespace contextile {

// A run of consecutive tokens of one sequence on one rank.
struct AttentionShard {
  Rank rank;
  Range tokens;
  std::int64_t kv_tokens = 0;  // distinct keys its queries attend
  std::int64_t pairs = 0;      // attended (q, k) pairs
};

// Returns the shards of all ranks, ascending by tokens, including those that attend nothing.
// `ranges[r]` are the ranges that rank r has of the sequences.
// O((shards + bands that meet a shard) · log).
[[nodiscard]] std::vector<AttentionShard> attention_shards(
    const Mask& mask, std::span<const Range> sequences, std::span<const std::vector<Range>> ranges);

// Returns the microseconds of the slowest rank's forward attention: one call, and for every shard
// its FLOPs over the throughput of the cluster's attention profile. A shard costs as much as a
// rectangle: its rows, padded to whole kernel tiles, times the keys of its average row. If rows
// differ, half a kernel tile is added, because tiles that the edge of the mask crosses are computed
// whole.
[[nodiscard]] double estimate_attention_us(std::span<const AttentionShard> shards,
                                           const AttentionShape& shape, const Cluster& cluster);

}  // namespace contextile
