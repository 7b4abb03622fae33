#include "partition/grid/pins.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "partition/grid/support.h"

namespace contextile {
namespace {

// Returns the cost of the partition, from its definition: for every unit its bytes for all devices
// that have its block or a tile that needs it, and for their nodes.
std::int64_t cost_of(const AttentionGrid& grid, const GridSpec& spec,
                     const GridPartition& partition) {
  std::map<std::tuple<bool, BlockId, std::int32_t>, std::set<Rank>> devices;  // of every unit
  for (const BlockId b : grid.blocks.ids()) {
    for (std::int32_t g = 0; g < grid.head_groups; ++g) {
      for (const bool is_row : {true, false}) devices[{is_row, b, g}] = {partition.owner[b]};
    }
  }
  for (const TileId t : grid.tiles.ids()) {
    const GridTile& tile = grid.tiles[t];
    devices[{true, tile.row, tile.group.value}].insert(partition.device[t]);
    devices[{false, tile.column, tile.group.value}].insert(partition.device[t]);
  }
  std::int64_t cost = 0;
  for (const auto& [unit, spanned] : devices) {
    const auto& [is_row, block, group] = unit;
    std::set<std::int32_t> nodes;
    for (const Rank device : spanned) nodes.insert(device.value / spec.devices_per_node);
    const std::int64_t bytes = grid.blocks[block].tokens *
                               (is_row ? grid.row_bytes_per_token : grid.column_bytes_per_token);
    cost += bytes * (std::ssize(spanned) + spec.node_weight * std::ssize(nodes));
  }
  return cost;
}

TEST(PinnedGrid, DeltasAreWhatTheCostChangesByWhileVerticesMove) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const AttentionGrid grid = random_grid(rng, 12);
    GridSpec spec;
    spec.nodes = static_cast<std::int32_t>(random_between(rng, 1, 4));
    spec.devices_per_node = static_cast<std::int32_t>(random_between(rng, 1, 4));
    spec.node_weight = random_between(rng, 0, 5);
    std::vector<Rank> all;
    for (const Rank d : IdRange<Rank>(spec.nodes * spec.devices_per_node)) all.push_back(d);
    const auto any_device = [&] {
      return all[static_cast<std::size_t>(random_between(rng, 0, std::ssize(all) - 1))];
    };
    GridPartition partition;
    for (std::size_t b = 0; b < grid.blocks.size(); ++b) partition.owner.push_back(any_device());
    for (std::size_t t = 0; t < grid.tiles.size(); ++t) partition.device.push_back(any_device());
    PinnedGrid pinned(grid, spec, partition);
    std::vector<std::int64_t> found;
    for (int step = 0; step < 20; ++step) {
      const GridVertexId v{
          static_cast<std::int32_t>(random_between(rng, 0, pinned.num_vertices() - 1))};
      const std::int64_t before = cost_of(grid, spec, partition);
      pinned.find_deltas(v, all, found);
      ASSERT_EQ(found.size(), all.size());
      const Rank from = pinned.device(v);
      for (std::size_t d = 0; d < all.size(); ++d) {
        EXPECT_EQ(found[d], pinned.delta(v, all[d]));
        EXPECT_TRUE(found[d] >= 0 || pinned.can_gain(v));
        if (v.value >= pinned.num_blocks()) {
          EXPECT_EQ(found[d], pinned.delta(pinned.with_nets(v), from, all[d]));
        }
        if (all[d] == from) continue;
        pinned.move(v, all[d]);
        EXPECT_EQ(found[d], cost_of(grid, spec, partition) - before);
        pinned.move(v, from);
      }
      pinned.move(v, any_device());
    }
  }
}

TEST(PinnedGrid, KnowsTheDevicesOfMoreThanOneWord) {
  Rng rng(4);
  const AttentionGrid grid = random_grid(rng, 12);
  GridSpec spec;
  spec.nodes = 11;
  spec.devices_per_node = 13;
  GridPartition partition;
  const auto any_device = [&] {
    return Rank{static_cast<std::int32_t>(random_between(rng, 0, 11 * 13 - 1))};
  };
  for (std::size_t b = 0; b < grid.blocks.size(); ++b) partition.owner.push_back(any_device());
  for (std::size_t t = 0; t < grid.tiles.size(); ++t) partition.device.push_back(any_device());
  PinnedGrid pinned(grid, spec, partition);
  for (int step = 0; step < 50; ++step) {
    const TileId t{static_cast<std::int32_t>(random_between(rng, 0, std::ssize(grid.tiles) - 1))};
    const GridVertexId v{pinned.num_blocks() + t.value};
    const GridTile& tile = grid.tiles[t];
    std::set<Rank> expected = {partition.owner[tile.row], partition.owner[tile.column]};
    for (const TileId u : grid.tiles.ids()) {
      const GridTile& other = grid.tiles[u];
      const bool meets = other.row == tile.row || other.column == tile.column;
      if (other.group == tile.group && meets) expected.insert(partition.device[u]);
    }
    std::vector<Rank> found;
    pinned.for_each_device(v, [&](Rank device) { found.push_back(device); });
    EXPECT_EQ(found, std::vector<Rank>(expected.begin(), expected.end()));
    pinned.move(v, any_device());
  }
}

}  // namespace
}  // namespace contextile
