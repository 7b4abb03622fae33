#include "strategy/fcp/fcp_traffic.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "contextile/extend/arrangement.h"
#include "contextile/mask.h"

namespace contextile {

ShardTraffic::ShardTraffic(const Workload& workload, std::span<const Shard> shards,
                           std::int32_t num_positions)
    : shards_(shards),
      positions_(shards.size(), kNowhere),
      sent_(static_cast<std::size_t>(num_positions)),
      received_(static_cast<std::size_t>(num_positions)) {
  for (const NamedMask& mask : workload.masks) {
    for (const Shard& shard : shards) {
      columns_.push_back(
          {.key_bytes = mask.layers * unit_bytes(Kind::kKv, shard.tokens, workload.shape, 1,
                                                 workload.shape.dtype),
           .source = shard.home,
           .has_home = shard.home != kNowhere});
    }
    query_bytes_ += mask.layers * unit_bytes(Kind::kQ, 1, workload.shape, 1, workload.shape.dtype);
    output_bytes_ += mask.layers * unit_bytes(Kind::kO, 1, workload.shape, 1, workload.shape.dtype);
  }
  list_reads(workload);
  count_.assign(columns_.size() * sent_.size(), 0);
}

// Lists the columns that every shard reads, ascending, as ranges.
void ShardTraffic::list_reads(const Workload& workload) {
  Blocking rows;
  for (const Shard& shard : shards_) rows.add(shard.ranges);
  const auto by_row = [](const Tile& a, const Tile& b) {
    return std::pair(a.q_block, a.kv_block) < std::pair(b.q_block, b.kv_block);
  };
  std::vector<std::vector<Tile>> tiles;  // by mask
  for (const NamedMask& mask : workload.masks) {
    tiles.push_back(TileIndex(mask.mask, rows).tiles());
    if (!std::ranges::is_sorted(tiles.back(), by_row)) std::ranges::sort(tiles.back(), by_row);
  }
  std::vector<std::size_t> next(tiles.size());
  std::size_t num_reads = 0;
  for (std::size_t s = 0; s < shards_.size(); ++s) {
    first_read_.push_back(num_reads);
    first_range_.push_back(ranges_.size());
    for (std::size_t m = 0; m < tiles.size(); ++m) {
      for (; next[m] < tiles[m].size() && tiles[m][next[m]].q_block.index() == s; ++next[m]) {
        add_read(m * shards_.size() + tiles[m][next[m]].kv_block.index());
        ++num_reads;
      }
    }
  }
  first_read_.push_back(num_reads);
  first_range_.push_back(ranges_.size());
}

// Adds a column to the reads of the shard that is being listed.
void ShardTraffic::add_read(std::size_t column) {
  if (ranges_.size() > first_range_.back() && ranges_.back().end == column) {
    ++ranges_.back().end;
  } else {
    ranges_.push_back({column, column + 1});
  }
}

void ShardTraffic::place(std::size_t shard, std::int32_t position) {
  set_source(shard, position);
  update_moves(shard, position, 1);
  update_source(shard, position, 1);
  update_reads(shard, position, 1);
}

void ShardTraffic::take(std::size_t shard) {
  const std::int32_t position = positions_[shard];
  update_reads(shard, position, -1);
  update_source(shard, position, -1);
  update_moves(shard, position, -1);
  set_source(shard, kNowhere);
}

void ShardTraffic::set_source(std::size_t shard, std::int32_t position) {
  positions_[shard] = position;
  for (std::size_t c = shard; c < columns_.size(); c += shards_.size()) {
    if (!columns_[c].has_home) columns_[c].source = position;
  }
}

inline void ShardTraffic::add(std::vector<std::int64_t>& bytes, std::int32_t position,
                              std::int64_t change, double& unevenness) {
  std::int64_t& value = bytes[static_cast<std::size_t>(position)];
  const auto fourth_power = [](std::int64_t x) {
    const double square = static_cast<double>(x) * static_cast<double>(x);
    return square * square;
  };
  unevenness -= fourth_power(value);
  value += change;
  unevenness += fourth_power(value);
}

// Accounts for queries that are not worked on at home, and for their outputs.
void ShardTraffic::update_moves(std::size_t s, std::int32_t position, int sign) {
  const Shard& shard = shards_[s];
  if (shard.home == kNowhere) return;
  const std::int64_t here = position == shard.home ? shard.tokens_at_home : 0;
  add(received_, position, sign * query_bytes_ * (shard.tokens - here), unevenness_);
  add(sent_, position, sign * output_bytes_ * (shard.tokens - here), unevenness_);
  add(sent_, shard.home, sign * query_bytes_ * (shard.tokens_at_home - here), unevenness_);
  add(received_, shard.home, sign * output_bytes_ * (shard.tokens_at_home - here), unevenness_);
}

// Accounts for a shard's keys if it has no home. The keys then come from where the shard is placed,
// and that position reads them without receiving anything.
void ShardTraffic::update_source(std::size_t s, std::int32_t position, int sign) {
  if (shards_[s].home != kNowhere) return;
  for (std::size_t c = s; c < columns_.size(); c += shards_.size()) {
    const Column& column = columns_[c];
    const int here = readers_at(position)[c] > 0 ? 1 : 0;
    add(sent_, position, sign * column.key_bytes * (column.readers - here), unevenness_);
    if (here > 0) add(received_, position, -sign * column.key_bytes, unevenness_);
  }
}

inline void ShardTraffic::count_reader(Column& column, std::int32_t position, int sign,
                                       double& unevenness) {
  column.readers += sign;
  if (column.source == position) return;
  add(received_, position, sign * column.key_bytes, unevenness);
  if (!column.has_home && column.source != kNowhere) {
    add(sent_, column.source, sign * column.key_bytes, unevenness);
  }
}

void ShardTraffic::update_reads(std::size_t s, std::int32_t position, int sign) {
  constexpr std::size_t kColumnsAtOnce = 8;
  std::int32_t* const counts = readers_at(position);
  const std::int32_t changing = sign > 0 ? 0 : 1;
  double unevenness = unevenness_;  // in a register: every change waits for the last one
  for (std::size_t r = first_range_[s]; r < first_range_[s + 1]; ++r) {
    const std::size_t end = ranges_[r].end;
    std::size_t c = ranges_[r].begin;
    // Most columns have other readers at the position: the compiler tests several at once.
    for (; c + kColumnsAtOnce <= end; c += kColumnsAtOnce) {
      std::int32_t* const some = counts + c;
      std::int32_t changes = 0;
      for (std::size_t i = 0; i < kColumnsAtOnce; ++i) changes |= some[i] == changing ? 1 : 0;
      if (changes != 0) {
        for (std::size_t i = 0; i < kColumnsAtOnce; ++i) {
          if (some[i] == changing) count_reader(columns_[c + i], position, sign, unevenness);
        }
      }
      for (std::size_t i = 0; i < kColumnsAtOnce; ++i) some[i] += sign;
    }
    for (; c < end; ++c) {
      const std::int32_t before = counts[c];
      counts[c] = before + sign;
      if (before == changing) count_reader(columns_[c], position, sign, unevenness);
    }
  }
  unevenness_ = unevenness;
}

}  // namespace contextile
