#include "strategy/fcp/fcp_traffic.h"

#include <numeric>
#include <set>
#include <utility>

#include "contextile/extend/arrangement.h"
#include "contextile/mask.h"

namespace contextile {

ShardTraffic::ShardTraffic(const Workload& workload, std::span<const Shard> shards,
                           std::int32_t num_positions)
    : shards_(shards),
      positions_(shards.size(), kNowhere),
      sent_(static_cast<std::size_t>(num_positions)),
      received_(static_cast<std::size_t>(num_positions)) {
  Blocking rows;
  for (const Shard& shard : shards) rows.add(shard.ranges);
  std::vector<std::pair<std::size_t, std::size_t>> reads;  // (shard, column)
  for (const NamedMask& mask : workload.masks) {
    const std::size_t first_column = key_bytes_.size();
    for (const Tile& tile : TileIndex(mask.mask, rows).tiles()) {
      reads.emplace_back(tile.q_block.index(), first_column + tile.kv_block.index());
    }
    for (const Shard& shard : shards) {
      key_bytes_.push_back(mask.layers * unit_bytes(Kind::kKv, shard.tokens, workload.shape, 1,
                                                    workload.shape.dtype));
    }
    query_bytes_ += mask.layers * unit_bytes(Kind::kQ, 1, workload.shape, 1, workload.shape.dtype);
    output_bytes_ += mask.layers * unit_bytes(Kind::kO, 1, workload.shape, 1, workload.shape.dtype);
  }
  std::sort(reads.begin(), reads.end());
  first_read_.assign(shards.size() + 1, 0);
  for (const auto& [shard, column] : reads) {
    ++first_read_[shard + 1];
    reads_.push_back(column);
  }
  std::partial_sum(first_read_.begin(), first_read_.end(), first_read_.begin());
  readers_.assign(key_bytes_.size(), 0);
  count_.assign(key_bytes_.size() * sent_.size(), 0);
}

void ShardTraffic::place(std::size_t shard, std::int32_t position) {
  positions_[shard] = position;
  update_moves(shard, position, 1);
  update_source(shard, position, 1);
  update_reads(shard, position, 1);
}

void ShardTraffic::take(std::size_t shard) {
  const std::int32_t position = positions_[shard];
  update_reads(shard, position, -1);
  update_source(shard, position, -1);
  update_moves(shard, position, -1);
  positions_[shard] = kNowhere;
}

void ShardTraffic::add(std::vector<std::int64_t>& bytes, std::int32_t position,
                       std::int64_t change) {
  std::int64_t& value = bytes[static_cast<std::size_t>(position)];
  const auto fourth_power = [](std::int64_t x) {
    const double square = static_cast<double>(x) * static_cast<double>(x);
    return square * square;
  };
  unevenness_ -= fourth_power(value);
  value += change;
  unevenness_ += fourth_power(value);
}

// Accounts for queries that are not worked on at home, and for their outputs.
void ShardTraffic::update_moves(std::size_t s, std::int32_t position, int sign) {
  const Shard& shard = shards_[s];
  if (shard.home == kNowhere) return;
  const std::int64_t here = position == shard.home ? shard.tokens_at_home : 0;
  add(received_, position, sign * query_bytes_ * (shard.tokens - here));
  add(sent_, position, sign * output_bytes_ * (shard.tokens - here));
  add(sent_, shard.home, sign * query_bytes_ * (shard.tokens_at_home - here));
  add(received_, shard.home, sign * output_bytes_ * (shard.tokens_at_home - here));
}

// Accounts for a shard's keys if it has no home. The keys then come from where the shard is placed,
// and that position reads them without receiving anything.
void ShardTraffic::update_source(std::size_t s, std::int32_t position, int sign) {
  if (shards_[s].home != kNowhere) return;
  for (std::size_t column = s; column < key_bytes_.size(); column += shards_.size()) {
    const int here = readers_at(column, position) > 0 ? 1 : 0;
    add(sent_, position, sign * key_bytes_[column] * (readers_[column] - here));
    if (here > 0) add(received_, position, -sign * key_bytes_[column]);
  }
}

void ShardTraffic::update_reads(std::size_t s, std::int32_t position, int sign) {
  for (std::size_t r = first_read_[s]; r < first_read_[s + 1]; ++r) {
    const std::size_t column = reads_[r];
    std::int32_t& count = readers_at(column, position);
    const bool is_only = sign > 0 ? count == 0 : count == 1;
    count += sign;
    if (!is_only) continue;
    readers_[column] += sign;
    const std::size_t keys = column % shards_.size();
    const std::int32_t home = shards_[keys].home;
    const std::int32_t source = home == kNowhere ? positions_[keys] : home;
    if (source == position) continue;
    add(received_, position, sign * key_bytes_[column]);
    if (home == kNowhere && source != kNowhere) add(sent_, source, sign * key_bytes_[column]);
  }
}

}  // namespace contextile
