// What the attention of a rank takes under a fixed layout, before anything is planned.
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

// `ranges[r]`: what rank r has of the sequences. Ascending by tokens; shards that attend nothing
// are among them. O((shards + bands that meet a shard) · log).
[[nodiscard]] std::vector<AttentionShard> attention_shards(
    const Mask& mask, std::span<const Range> sequences, std::span<const std::vector<Range>> ranges);

// Microseconds of the slowest rank's forward attention: one call, and for every shard its FLOPs
// over the throughput of the cluster's attention profile. A shard costs as a rectangle does: its
// rows, padded to whole kernel tiles, times the keys of its average row and, where rows differ,
// half a kernel tile more (what the edge of the mask crosses is computed whole).
[[nodiscard]] double estimate_attention_us(std::span<const AttentionShard> shards,
                                           const AttentionShape& shape, const Cluster& cluster);

}  // namespace contextile
