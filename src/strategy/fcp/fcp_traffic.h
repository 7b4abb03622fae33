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
// is placed; that position receives each shard of keys they read once. Keys leave from where their
// own shard is placed. With a home layout they count as sent by no position, because any reader may
// cast them; queries that are placed elsewhere travel there and their outputs back.
class ShardTraffic {
 public:
  static constexpr std::int32_t kNowhere = -1;

  // Begins with no shard placed. O(shards · positions + tiles · log).
  ShardTraffic(const Workload& workload, std::span<const Shard> shards, std::int32_t num_positions);

  // Places a shard or takes it away. O(shards that it reads).
  void place(std::size_t shard, std::int32_t position);
  void take(std::size_t shard);

  [[nodiscard]] std::int32_t position(std::size_t shard) const { return positions_[shard]; }
  [[nodiscard]] std::int64_t sent(std::int32_t position) const {
    return sent_[static_cast<std::size_t>(position)];
  }
  [[nodiscard]] std::int64_t received(std::int32_t position) const {
    return received_[static_cast<std::size_t>(position)];
  }
  // Returns the bytes sent or received, whichever are more.
  [[nodiscard]] std::int64_t bytes(std::int32_t position) const {
    return std::max(sent(position), received(position));
  }
  // Returns the sum of the fourth powers of the bytes, over positions and both ways. It falls as
  // bytes get fewer or more even.
  [[nodiscard]] double unevenness() const { return unevenness_; }
  // Returns the number of shard reads of all queries, which is the cost of updating every shard
  // once.
  [[nodiscard]] std::size_t num_reads() const { return first_read_.back(); }
  [[nodiscard]] std::size_t num_reads(std::size_t shard) const {
    return first_read_[shard + 1] - first_read_[shard];
  }

 private:
  // A shard's keys under one mask.
  struct Column {
    std::int64_t key_bytes = 0;
    std::int32_t readers = 0;  // positions that read it
    // The position where the keys are. Keys with a home are not charged to it.
    std::int32_t source = kNowhere;
    bool has_home = false;
  };
  struct ColumnRange {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  void list_reads(const Workload& workload);
  void add_read(std::size_t column);
  static void add(std::vector<std::int64_t>& bytes, std::int32_t position, std::int64_t change,
                  double& unevenness);
  void set_source(std::size_t shard, std::int32_t position);
  void update_source(std::size_t shard, std::int32_t position, int sign);
  void update_reads(std::size_t shard, std::int32_t position, int sign);
  void update_moves(std::size_t shard, std::int32_t position, int sign);
  // Called when the first reader of a column comes to a position, or the last one goes.
  void count_reader(Column& column, std::int32_t position, int sign, double& unevenness);
  // Returns the counts of all columns at a position.
  [[nodiscard]] std::int32_t* readers_at(std::int32_t position) {
    return count_.data() + static_cast<std::size_t>(position) * columns_.size();
  }

  std::span<const Shard> shards_;
  std::vector<std::int32_t> positions_;  // of every shard
  std::vector<Column> columns_;          // all shards of the first mask, then of the next
  // Position by column: shards there that read it. A shard's counts are near each other, because
  // it reads few ranges of columns.
  std::vector<std::int32_t> count_;
  std::vector<std::size_t> first_read_;   // by shard: reads of all earlier ones
  std::vector<std::size_t> first_range_;  // shard s reads ranges_[first_range_[s], …[s + 1])
  std::vector<ColumnRange> ranges_;
  std::vector<std::int64_t> sent_;
  std::vector<std::int64_t> received_;
  std::int64_t query_bytes_ = 0;  // of a token, all layers
  std::int64_t output_bytes_ = 0;
  double unevenness_ = 0;
};

// Places shards that have a home. They go there, the cheapest first, up to the load limit; the
// others go where they cause the least traffic within it. Returns false if a shard finds no room or
// a position exceeds the load limit; the placement is then of no use.
[[nodiscard]] bool keep_at_home(std::span<const Shard> shards, const PlacementLimit& limit,
                                std::int64_t load_limit, std::int32_t num_positions,
                                ShardTraffic& traffic);

// Moves and swaps shards of the most loaded position, also two at a time, while that lowers its
// load and it is above `load_limit`.
void level_loads(std::span<const Shard> shards, const PlacementLimit& limit,
                 std::int64_t load_limit, std::int32_t num_positions, ShardTraffic& traffic);

// Moves and swaps shards of the busiest positions, also two at a time, while that lowers the
// unevenness. No position is pushed above `load_limit` or beyond its room.
void even_traffic(std::span<const Shard> shards, const PlacementLimit& limit,
                  std::int64_t load_limit, std::int32_t num_positions, ShardTraffic& traffic);

}  // namespace contextile
