#include "planner/auto/row_placement.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "partition/grid/rows.h"
#include "planner/auto/link_rates.h"
#include "planner/auto/tuning.h"

namespace contextile {
namespace {

std::vector<WholeRow> whole_rows(const Workload& workload, const PricedTiles& priced) {
  const Blocking& blocks = priced.tiles.work.blocks;
  std::vector<WholeRow> rows(static_cast<std::size_t>(blocks.num_blocks()));
  SequenceId sequence{0};
  for (const BlockId b : IdRange<BlockId>(blocks.num_blocks())) {
    const std::int64_t first = blocks.ranges(b).front().begin;
    while (workload.sequences[sequence.index()].end <= first) ++sequence.value;
    rows[b.index()].tokens = blocks.num_tokens(b);
    rows[b.index()].sequence = sequence;
  }
  const std::vector<Tile>& tiles = priced.tiles.all_tiles;
  for (std::size_t t = 0; t < tiles.size(); ++t) {
    WholeRow& row = rows[tiles[t].q_block.index()];
    row.us += 1e-3 * static_cast<double>(priced.work_ns[t]);
    if (tiles[t].kv_block != tiles[t].q_block) row.keys.push_back(tiles[t].kv_block.value);
  }
  return rows;
}

// A device that receives keys launches a group of transfers, waits for the first of them and makes
// a further call, in every layer and direction.
double receiver_us(const Cluster& cluster, double layers, bool backward) {
  const double latency_us = cluster.nodes > 1 ? cluster.inter_latency_us : cluster.intra_latency_us;
  const double us = cluster.launch_us + latency_us + cluster.attention.call_us;
  return tuning::kRowByteWeight * layers * (backward ? 2 : 1) * us / cluster.num_devices();
}

RowSpec spec_of(const Workload& workload, const Cluster& cluster, const PlacementChoice& choice,
                GridBytes bytes, const PlacingRules& rules) {
  RowSpec spec;
  spec.nodes = cluster.nodes;
  spec.devices_per_node = cluster.devices_per_node;
  spec.nics_per_node = cluster.nics_per_node;
  spec.spread_heads = choice.unit == PlacedUnit::kSpreadRows;
  const std::int32_t devices = cluster.num_devices();
  spec.token_cap = rules.token_cap > 0
                       ? rules.token_cap
                       : (workload.num_tokens() + devices - 1) / devices + choice.block_size;
  double layers = 0;
  for (const NamedMask& mask : workload.masks) layers += mask.layers;
  const double keys = layers * static_cast<double>(bytes.column * choice.head_groups);
  const double queries = layers * static_cast<double>(bytes.row * choice.head_groups);
  const double port = tuning::kRowByteWeight * kUsPerByteOfGbytes / cluster.intra_gbytes_per_s;
  const double nic =
      tuning::kRowByteWeight * kUsPerByteOfGbytes / cluster.inter_gbytes_per_s_per_node;
  spec.device_us = port * keys / devices;
  spec.node_us = cluster.nodes > 1 ? nic * keys / cluster.nodes : 0;
  spec.port_us = port / tuning::kRowByteWeight * keys;
  spec.nic_us = cluster.nodes > 1 ? nic / tuning::kRowByteWeight * keys : 0;
  spec.spread_us = port * queries * (1 - 1.0 / cluster.devices_per_node) / devices;
  spec.overfull_us = std::max(tuning::kOverfullRowWeight * port * queries,
                              tuning::kOverfullRowPrices * rules.token_us);
  spec.steps = static_cast<std::int64_t>(tuning::kRowAnnealingSteps * choice.effort);
  spec.fill = choice.fill;
  spec.heat = choice.heat;
  // With even work nearly every device receives keys, so that this price decides nothing.
  if (choice.fill > 1) spec.receiver_us = receiver_us(cluster, layers, rules.backward);
  spec.seed = choice.seed;
  return spec;
}

// Rows that attend keys of one another (those of a document) have the same number of head groups:
// one, unless some of them are spread over a node.
std::vector<std::int32_t> head_groups_of_rows(const PricedTiles& priced,
                                              const std::vector<RowPlace>& places,
                                              std::int32_t num_devices, std::int32_t spread) {
  std::vector<std::size_t> joined(places.size());
  std::iota(joined.begin(), joined.end(), std::size_t{0});
  const auto root = [&](std::size_t row) {
    while (joined[row] != row) row = joined[row] = joined[joined[row]];
    return row;
  };
  for (const Tile& tile : priced.tiles.all_tiles) {
    joined[root(tile.q_block.index())] = root(tile.kv_block.index());
  }
  std::vector<std::int32_t> groups(places.size(), 1);
  for (std::size_t row = 0; row < places.size(); ++row) {
    if (places[row] >= num_devices) groups[root(row)] = spread;
  }
  for (std::size_t row = 0; row < places.size(); ++row) groups[row] = groups[root(row)];
  if (std::ranges::find(groups, 1) == groups.end()) groups.clear();
  return groups;
}

}  // namespace

PlacedRows place_whole_rows(const Workload& workload, const Cluster& cluster,
                            const PricedTiles& priced, const PlacementChoice& choice,
                            GridBytes bytes, const PlacingRules& rules, const RowStart* warm) {
  const std::vector<WholeRow> rows = whole_rows(workload, priced);
  RowSpec spec = spec_of(workload, cluster, choice, bytes, rules);
  if (warm != nullptr) {
    spec.steps = static_cast<std::int64_t>(tuning::kRowAnnealingSteps * tuning::kWarmRowEffort);
    spec.heat = tuning::kWarmRowHeat;
    spec.handicap_us = warm->handicap_us;
  }
  PlacedRows placed;
  placed.places =
      place_rows(rows, spec, warm == nullptr ? std::span<const RowPlace>() : warm->places);
  GridPartition& partition = placed.partition;
  for (const Rank owner : own_rows(rows, spec, placed.places)) partition.owner.push_back(owner);
  if (choice.head_groups > 1) {
    placed.block_head_groups =
        head_groups_of_rows(priced, placed.places, cluster.num_devices(), choice.head_groups);
  }
  for (const Tile& tile : priced.tiles.all_tiles) {
    const RowPlace place = placed.places[tile.q_block.index()];
    const std::int32_t node = place - cluster.num_devices();
    for (std::int32_t g = 0; g < choice.head_groups; ++g) {
      const std::int32_t of_group =
          node * cluster.devices_per_node + g * cluster.devices_per_node / choice.head_groups;
      partition.device.push_back(Rank{node < 0 ? place : of_group});
    }
  }
  return placed;
}

}  // namespace contextile
