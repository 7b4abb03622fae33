#include "strategy/shard_cost.h"

#include <algorithm>
#include <cstddef>

namespace contextile {
namespace {

// Returns the number of tokens in the union of ranges.
std::int64_t union_tokens(std::vector<Range>& ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::int64_t tokens = 0;
  std::int64_t end = 0;
  for (const Range& range : ranges) {
    tokens += Range{std::max(range.begin, end), range.end}.size();
    end = std::max(end, range.end);
  }
  return tokens;
}

// Returns every rank's ranges cut at the ends of sequences, ascending.
std::vector<AttentionShard> cut_at_sequences(std::span<const Range> sequences,
                                             std::span<const std::vector<Range>> ranges) {
  std::vector<AttentionShard> shards;
  for (std::size_t r = 0; r < ranges.size(); ++r) {
    for (const Range& range : ranges[r]) {
      auto sequence = std::partition_point(sequences.begin(), sequences.end(),
                                           [&](const Range& s) { return s.end <= range.begin; });
      for (; sequence != sequences.end() && sequence->begin < range.end; ++sequence) {
        shards.push_back({Rank{static_cast<std::int32_t>(r)}, intersect(range, *sequence), 0, 0});
      }
    }
  }
  std::sort(shards.begin(), shards.end(),
            [](const AttentionShard& a, const AttentionShard& b) { return a.tokens < b.tokens; });
  return shards;
}

}  // namespace

std::vector<AttentionShard> attention_shards(const Mask& mask, std::span<const Range> sequences,
                                             std::span<const std::vector<Range>> ranges) {
  std::vector<AttentionShard> shards = cut_at_sequences(sequences, ranges);
  std::vector<std::vector<Range>> keys(shards.size());
  for (const Band& band : mask.bands) {
    auto shard = std::partition_point(shards.begin(), shards.end(), [&](const AttentionShard& s) {
      return s.tokens.end <= band.q.begin;
    });
    for (; shard != shards.end() && shard->tokens.begin < band.q.end; ++shard) {
      const Band piece = clip(band, shard->tokens, band.k);
      if (piece.q.empty()) continue;
      shard->pairs += num_pairs(piece);
      keys[static_cast<std::size_t>(shard - shards.begin())].push_back(piece.k);
    }
  }
  for (std::size_t s = 0; s < shards.size(); ++s) shards[s].kv_tokens = union_tokens(keys[s]);
  return shards;
}

double estimate_attention_us(std::span<const AttentionShard> shards, const AttentionShape& shape,
                             const Cluster& cluster) {
  constexpr double kFlopsPerUsAtOneTflops = 1e6;
  const AttentionProfile& profile = cluster.attention;
  const std::int64_t tile_rows = std::max<std::int64_t>(profile.kernel_tile_rows, 1);
  std::vector<double> time_us(static_cast<std::size_t>(cluster.num_devices()));
  for (const AttentionShard& shard : shards) {
    if (shard.pairs == 0) continue;
    const std::int64_t q_tokens = shard.tokens.size();
    const std::int64_t padded_tokens = (q_tokens + tile_rows - 1) / tile_rows * tile_rows;
    const auto padded = static_cast<double>(padded_tokens);
    const bool all_attended = shard.pairs == q_tokens * shard.kv_tokens;
    const double keys = static_cast<double>(shard.pairs) / static_cast<double>(q_tokens) +
                        (all_attended ? 0 : static_cast<double>(profile.kernel_tile_rows) / 2);
    const double flops = forward_flops(1, shape.q_heads, shape) * padded * keys;
    double& mine = time_us[shard.rank.index()];
    if (mine == 0) mine = profile.call_us;
    mine += flops / (cluster.usable_attention_tflops() * kFlopsPerUsAtOneTflops *
                     profile.forward_share(padded, keys));
  }
  return *std::max_element(time_us.begin(), time_us.end());
}

}  // namespace contextile
