// Bytes that positions send and receive, by where FCP's distributor puts its shards.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/workload.h"
#include "strategy/fcp/distributor.h"

namespace contextile {

// Traffic of one forward pass of every layer, updated shard by shard. Queries run where their shard
// is placed, which receives each shard of keys they read once. Keys leave from where their own
// shard is placed; with a home layout from home, whoever then casts them, and queries that are
// placed elsewhere travel there and their outputs back.
class ShardTraffic {
 public:
  static constexpr std::int32_t kNowhere = -1;

  // O(shards · positions + tiles · log). Nothing is placed yet.
  ShardTraffic(const Workload& workload, std::span<const Shard> shards, std::int32_t num_positions);

  // Both O(shards that it reads).
  void place(std::size_t shard, std::int32_t position);
  void take(std::size_t shard);

  [[nodiscard]] std::int32_t position(std::size_t shard) const { return positions_[shard]; }
  // The busier of both ways.
  [[nodiscard]] std::int64_t bytes(std::int32_t position) const {
    const auto p = static_cast<std::size_t>(position);
    return std::max(sent_[p], received_[p]);
  }
  // Sum over positions and both ways of the fourth powers of bytes: falls as they get fewer or more
  // even.
  [[nodiscard]] double unevenness() const { return unevenness_; }
  // Shard reads of all queries together, what an update of every shard costs.
  [[nodiscard]] std::size_t num_reads() const { return reads_.size(); }
  [[nodiscard]] std::size_t num_reads(std::size_t shard) const {
    return first_read_[shard + 1] - first_read_[shard];
  }

 private:
  void add(std::vector<std::int64_t>& bytes, std::int32_t position, std::int64_t change);
  void update_source(std::size_t shard, std::int32_t position, int sign);
  void update_reads(std::size_t shard, std::int32_t position, int sign);
  void update_moves(std::size_t shard, std::int32_t position, int sign);
  [[nodiscard]] std::int32_t& readers_at(std::size_t column, std::int32_t position) {
    return count_[column * sent_.size() + static_cast<std::size_t>(position)];
  }

  std::span<const Shard> shards_;
  std::vector<std::int32_t> positions_;  // of every shard
  std::vector<std::int64_t> key_bytes_;  // of every column: a shard's keys under one mask
  std::vector<std::int32_t> readers_;    // of every column: positions that read it
  std::vector<std::int32_t> count_;      // column by position: shards there that read it
  std::vector<std::size_t> first_read_;  // columns a shard reads: reads_[first_read_[s], …[s + 1])
  std::vector<std::size_t> reads_;
  std::vector<std::int64_t> sent_;
  std::vector<std::int64_t> received_;
  std::int64_t query_bytes_ = 0;  // of a token, all layers
  std::int64_t output_bytes_ = 0;
  double unevenness_ = 0;
};

// Places shards that have a home: there, the cheapest of every home first, up to the load limit;
// the others where they cause the least traffic within it. False when a shard finds no room or a
// position exceeds the load limit: what is placed is then of no use.
[[nodiscard]] bool keep_at_home(std::span<const Shard> shards, const PlacementLimit& limit,
                                std::int64_t load_limit, std::int32_t num_positions,
                                ShardTraffic& traffic);

// Moves and swaps shards of the busiest position while that lowers the unevenness. No position gets
// above `load_limit` that was not, none loses its room.
void even_traffic(std::span<const Shard> shards, const PlacementLimit& limit,
                  std::int64_t load_limit, std::int32_t num_positions, ShardTraffic& traffic);

}  // namespace contextile
