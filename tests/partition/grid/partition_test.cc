#include "contextile/extend/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "partition/grid/support.h"

namespace contextile {
namespace {

std::int64_t total_work(const AttentionGrid& grid) {
  return std::accumulate(grid.tiles.begin(), grid.tiles.end(), std::int64_t{0},
                         [](std::int64_t sum, const GridTile& tile) { return sum + tile.work; });
}

GridSpec spec_of(std::int32_t nodes, std::int32_t devices) {
  GridSpec spec;
  spec.nodes = nodes;
  spec.devices_per_node = devices;
  return spec;
}

IdVector<Rank, std::int64_t> tokens_held(const AttentionGrid& grid, const GridSpec& spec,
                                         const GridPartition& partition) {
  IdVector<Rank, std::int64_t> held(IdRange<Rank>(spec.nodes * spec.devices_per_node));
  for (const BlockId b : grid.blocks.ids()) held[partition.owner[b]] += grid.blocks[b].tokens;
  return held;
}

constexpr SequenceId kOnly{0};

// Returns a grid of one causal sequence of equal blocks.
AttentionGrid causal_grid(std::int32_t num_blocks, std::int64_t tokens, std::int32_t groups) {
  AttentionGrid grid;
  grid.head_groups = groups;
  grid.row_bytes_per_token = 2048;
  grid.column_bytes_per_token = 512;
  for (std::int32_t b = 0; b < num_blocks; ++b) grid.blocks.push_back({tokens, kOnly});
  for (const BlockId i : grid.blocks.ids()) {
    for (const BlockId j : IdRange<BlockId>(i.value + 1)) {
      for (const GroupId g : IdRange<GroupId>(groups)) {
        grid.tiles.push_back({i, j, g, i == j ? tokens * (tokens + 1) / 2 : tokens * tokens});
      }
    }
  }
  return grid;
}

TEST(PartitionGrid, AssignsEverythingAndKeepsTheTokenCap) {
  for (std::uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const AttentionGrid grid = random_grid(rng, 60);
    const GridSpec spec = spec_of(static_cast<std::int32_t>(random_between(rng, 1, 4)),
                                  static_cast<std::int32_t>(random_between(rng, 1, 8)));
    const GridPartition partition = partition_grid(grid, spec);
    ASSERT_EQ(partition.owner.size(), grid.blocks.size());
    ASSERT_EQ(partition.device.size(), grid.tiles.size());
    const std::int32_t devices = spec.nodes * spec.devices_per_node;
    for (const Rank d : partition.device) ASSERT_TRUE(d.valid() && d.value < devices);
    for (const Rank d : partition.owner) ASSERT_TRUE(d.valid() && d.value < devices);
    std::vector<std::int64_t> sizes;
    for (const GridBlock& block : grid.blocks) sizes.push_back(block.tokens);
    const std::int64_t cap =
        longest_first_max(sizes, devices) + *std::max_element(sizes.begin(), sizes.end());
    for (const std::int64_t held : tokens_held(grid, spec, partition)) EXPECT_LE(held, cap);
  }
}

TEST(PartitionGrid, BalancesWorkWithinEpsWhenTilesAreSmall) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    const AttentionGrid grid = causal_grid(64, 1024, 2);
    GridSpec spec = spec_of(4, 8);
    spec.seed = seed;
    const GridQuality quality = evaluate(grid, spec, partition_grid(grid, spec));
    EXPECT_LE(quality.compute_overload, spec.eps_compute + 1e-9);
  }
}

// ------------------------------------------------------------------------ DCP's constraints

void expect_nested_bounds(const AttentionGrid& grid, const GridSpec& spec,
                          const GridPartition& partition) {
  const NestedBounds bounds = nested_bounds(grid, spec);
  std::vector<std::vector<std::int64_t>> work(static_cast<std::size_t>(spec.nodes));
  IdVector<Rank, std::int64_t> of_device(IdRange<Rank>(spec.nodes * spec.devices_per_node));
  for (const TileId t : grid.tiles.ids()) {
    const Rank device = partition.device[t];
    work[device.index() / static_cast<std::size_t>(spec.devices_per_node)].push_back(
        grid.tiles[t].work);
    of_device[device] += grid.tiles[t].work;
  }
  const IdVector<Rank, std::int64_t> held = tokens_held(grid, spec, partition);
  std::vector<std::vector<std::int64_t>> blocks(work.size());
  for (const BlockId b : grid.blocks.ids()) {
    blocks[partition.owner[b].index() / static_cast<std::size_t>(spec.devices_per_node)].push_back(
        grid.blocks[b].tokens);
  }
  Rank device{0};
  for (const std::vector<std::int64_t>& node : work) {
    EXPECT_LE(std::accumulate(node.begin(), node.end(), std::int64_t{0}), bounds.node_work);
    const std::int64_t bound = work_bound(node, spec.devices_per_node, spec.eps_compute);
    const auto& own = blocks[device.index() / static_cast<std::size_t>(spec.devices_per_node)];
    const std::int64_t packed = longest_first_max(own, spec.devices_per_node);
    std::int64_t tokens = 0;
    for (std::int32_t d = 0; d < spec.devices_per_node; ++d, ++device.value) {
      EXPECT_LE(of_device[device], bound) << device.value;
      EXPECT_LE(held[device], std::max(bounds.device_tokens, packed)) << device.value;
      tokens += held[device];
    }
    EXPECT_LE(tokens, bounds.node_tokens);
  }
}

GridSpec nested_spec(Rng& rng) {
  constexpr std::pair<int, int> kMachines[] = {{1, 1}, {1, 8},  {2, 4},  {4, 8}, {3, 5},
                                               {5, 1}, {12, 7}, {16, 8}, {3, 64}};
  const auto& [nodes, devices] = kMachines[random_between(rng, 0, 8)];
  GridSpec spec = spec_of(nodes, devices);
  spec.bounds = GridBounds::kNested;
  spec.eps_node = 0.01 * static_cast<double>(random_between(rng, 0, 40));
  spec.eps_compute = 0.01 * static_cast<double>(random_between(rng, 0, 20));
  spec.data_tolerance = 0.5 * static_cast<double>(random_between(rng, 0, 4));
  return spec;
}

TEST(NestedBounds, AreKeptWhateverTheGridAndTheMachine) {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const auto blocks = static_cast<std::int32_t>(random_between(rng, 1, 200));
    const AttentionGrid grid = random_grid(rng, blocks);
    const GridSpec spec = nested_spec(rng);
    expect_nested_bounds(grid, spec, partition_grid(grid, spec));
  }
}

TEST(NestedBounds, AnyPartitionIsMadeToKeepThemAndOneThatDoesStays) {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const AttentionGrid grid =
        random_grid(rng, static_cast<std::int32_t>(random_between(rng, 1, 120)));
    const GridSpec spec = nested_spec(rng);
    const bool on_one_device = random_chance(rng, 0.3);
    const auto any_device = [&] {
      const std::int64_t last = on_one_device ? 0 : spec.nodes * spec.devices_per_node - 1;
      return Rank{static_cast<std::int32_t>(random_between(rng, 0, last))};
    };
    GridPartition partition;
    for (std::size_t b = 0; b < grid.blocks.size(); ++b) partition.owner.push_back(any_device());
    for (std::size_t t = 0; t < grid.tiles.size(); ++t) partition.device.push_back(any_device());
    const NestedBounds bounds = nested_bounds(grid, spec);
    hold_nested_bounds(grid, spec, bounds, partition);
    expect_nested_bounds(grid, spec, partition);
    GridPartition again = partition;
    hold_nested_bounds(grid, spec, bounds, again);
    EXPECT_EQ(again.owner, partition.owner);
  }
}

TEST(NestedBounds, AreThoseOfLongestFirstPackingWhereTilesAreCoarse) {
  EXPECT_EQ(work_bound({1, 1, 1}, 2, 0.1), 2);  // 1.65 is infeasible
  EXPECT_EQ(work_bound({10, 1, 1}, 3, 0.1), 10);
  EXPECT_EQ(work_bound(std::vector<std::int64_t>(100, 10), 10, 0.1), 110);
  EXPECT_EQ(work_bound({}, 4, 0.1), 0);
  EXPECT_EQ(work_bound({11, 10, 10, 10}, 2, 0.02), 21);  // the share is 20
}

TEST(PartitionGrid, IsTheSameForTheSameSeed) {
  Rng rng(4);
  const AttentionGrid grid = random_grid(rng, 80);
  const GridSpec spec = spec_of(2, 8);
  const GridPartition a = partition_grid(grid, spec);
  const GridPartition b = partition_grid(grid, spec);
  EXPECT_EQ(a.owner, b.owner);
  EXPECT_EQ(a.device, b.device);
}

TEST(PartitionGrid, KeepsWholeSequencesTogetherWhenThatBalances) {
  AttentionGrid grid;
  grid.row_bytes_per_token = grid.column_bytes_per_token = 100;
  for (const SequenceId s : IdRange<SequenceId>(32)) {
    const BlockId only = grid.blocks.push_back({1000, s});
    grid.tiles.push_back({only, only, GroupId{0}, 500'000});
  }
  const GridSpec spec = spec_of(4, 8);
  const GridQuality quality = evaluate(grid, spec, partition_grid(grid, spec));
  EXPECT_EQ(quality.total_bytes, 0);
  EXPECT_EQ(quality.compute_overload, 0);
}

TEST(PartitionGrid, MovesLessThanRowsInAZigzag) {
  // Every device of a zigzag ring sends its keys to all 31 others and no queries.
  const AttentionGrid grid = causal_grid(128, 1024, 1);
  const GridSpec spec = spec_of(4, 8);
  const GridQuality quality = evaluate(grid, spec, partition_grid(grid, spec));
  const std::int64_t zigzag = std::int64_t{31} * 128 * 1024 * grid.column_bytes_per_token;
  EXPECT_LT(quality.total_bytes, zigzag);
}

TEST(PartitionGrid, MoreEffortIsNotWorse) {
  const AttentionGrid grid = causal_grid(64, 1024, 1);
  double fast = 0;
  double slow = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    GridSpec spec = spec_of(4, 8);
    spec.seed = seed;
    fast += static_cast<double>(evaluate(grid, spec, partition_grid(grid, spec)).total_bytes);
    spec.effort = 8;
    slow += static_cast<double>(evaluate(grid, spec, partition_grid(grid, spec)).total_bytes);
  }
  EXPECT_LT(slow, fast);
}

TEST(PartitionGrid, HandlesMoreDevicesThanFitOneWord) {
  const AttentionGrid grid = causal_grid(256, 512, 1);
  for (const auto& [nodes, devices] : {std::pair(16, 8), {12, 7}, {80, 4}, {3, 64}}) {
    SCOPED_TRACE(nodes);
    const GridSpec spec = spec_of(nodes, devices);
    const GridPartition partition = partition_grid(grid, spec);
    const GridQuality quality = evaluate(grid, spec, partition);
    const double mean = static_cast<double>(total_work(grid)) / (nodes * devices);
    const double tile = 512.0 * 512.0 / mean;
    EXPECT_LE(quality.compute_overload, 0.3 + tile);
    for (const std::int64_t held : tokens_held(grid, spec, partition)) {
      EXPECT_LE(held,
                longest_first_max(std::vector<std::int64_t>(256, 512), nodes * devices) + 2 * 512);
    }
  }
}

TEST(PartitionGrid, HandlesWhatIsDegenerate) {
  AttentionGrid empty;
  EXPECT_TRUE(partition_grid(empty, spec_of(2, 4)).owner.empty());
  AttentionGrid no_tiles;
  no_tiles.blocks = {{10, kOnly}, {10, kOnly}};
  EXPECT_EQ(partition_grid(no_tiles, spec_of(2, 4)).owner.size(), 2U);
  AttentionGrid giant = causal_grid(4, 10, 1);
  giant.tiles.front().work = 1'000'000'000;  // one tile is heavier than all devices should be
  const GridPartition partition = partition_grid(giant, spec_of(2, 4));
  EXPECT_EQ(partition.device.size(), giant.tiles.size());
  EXPECT_EQ(partition_grid(causal_grid(4, 10, 1), spec_of(1, 1)).device,
            (IdVector<TileId, Rank>(IdRange<TileId>(10), Rank{0})));
}

TEST(PartitionGrid, RefusesABlockAboveTheTokenCap) {
  GridSpec spec = spec_of(2, 4);
  spec.token_cap = 100;
  EXPECT_THROW(static_cast<void>(partition_grid(causal_grid(4, 101, 1), spec)), InvalidArgument);
  spec.devices_per_node = 65;
  EXPECT_THROW(static_cast<void>(partition_grid(causal_grid(4, 10, 1), spec)), InvalidArgument);
}

TEST(Evaluate, CountsByHandWhatASmallPartitionMoves) {
  AttentionGrid grid;
  grid.row_bytes_per_token = 10;  // 5 of queries, 5 of outputs
  grid.column_bytes_per_token = 7;
  const BlockId first{0};
  const BlockId second{1};
  const GroupId group{0};
  grid.blocks = {{1, kOnly}, {2, kOnly}};
  grid.tiles = {{first, first, group, 1}, {second, first, group, 2}, {second, second, group, 3}};
  const GridSpec spec = spec_of(2, 2);
  // Row 1 is owned by device 3 and computed on 2 and 3; column 0 is owned by 0 and needed on 0
  // and 2.
  const GridQuality quality =
      evaluate(grid, spec, {{Rank{0}, Rank{3}}, {Rank{0}, Rank{2}, Rank{3}}});
  EXPECT_EQ(quality.total_bytes, 2 * 10 + 1 * 7);
  EXPECT_EQ(quality.inter_bytes, 7);
  EXPECT_DOUBLE_EQ(quality.compute_overload, 3.0 / 1.5 - 1);
  EXPECT_DOUBLE_EQ(quality.token_overload, 2.0 / 0.75 - 1);
  EXPECT_EQ(quality.max_device_bytes, 7 + 10);  // device 2 receives keys and queries
  EXPECT_EQ(quality.max_port_bytes, 10);
  EXPECT_EQ(quality.max_nic_bytes, 7);
}

// Devices 0 and 1 of a node each fetch the keys of one device on the other node.
TEST(Evaluate, CountsWhatDevicesThatShareANicMoveThroughIt) {
  AttentionGrid grid;
  grid.column_bytes_per_token = 7;
  const GroupId group{0};
  grid.blocks = {{1, kOnly}, {1, kOnly}, {1, kOnly}, {1, kOnly}};
  grid.tiles = {{BlockId{0}, BlockId{2}, group, 1}, {BlockId{1}, BlockId{3}, group, 1}};
  const GridPartition partition = {{Rank{0}, Rank{1}, Rank{2}, Rank{3}}, {Rank{0}, Rank{1}}};
  GridSpec spec = spec_of(2, 2);
  EXPECT_EQ(evaluate(grid, spec, partition).max_nic_bytes, 7);
  spec.nics_per_node = 1;
  EXPECT_EQ(evaluate(grid, spec, partition).max_nic_bytes, 2 * 7);
  EXPECT_EQ(evaluate(grid, spec, partition).max_port_bytes, 0);
}

TEST(Relays, CrossANodeBoundaryOncePerNode) {
  Rng rng(11);
  std::vector<MovingUnit> units;
  for (int u = 0; u < 200; ++u) {
    MovingUnit unit;
    unit.bytes = random_between(rng, 1, 1000);
    unit.owner = Rank{static_cast<std::int32_t>(random_between(rng, 0, 15))};
    unit.towards_owner = random_chance(rng, 0.5);
    for (const Rank d : IdRange<Rank>(16)) {
      if (d != unit.owner && random_chance(rng, 0.4)) unit.devices.push_back(d);
    }
    units.push_back(unit);
  }
  const auto node = [](Rank device) { return device.index() / 4; };
  const auto via = choose_relays(units, 16, 4);
  for (std::size_t u = 0; u < units.size(); ++u) {
    std::vector<int> crossings(4);
    for (std::size_t i = 0; i < units[u].devices.size(); ++i) {
      const Rank device = units[u].devices[i];
      if (node(via[u][i]) != node(device)) {
        EXPECT_EQ(via[u][i], units[u].owner);
        ++crossings[node(device)];
      } else if (via[u][i] != units[u].owner) {  // a relay has the unit itself, from the owner
        const auto at = std::find(units[u].devices.begin(), units[u].devices.end(), via[u][i]);
        ASSERT_NE(at, units[u].devices.end());
        EXPECT_EQ(via[u][static_cast<std::size_t>(at - units[u].devices.begin())], units[u].owner);
      }
    }
    for (const int count : crossings) EXPECT_LE(count, 1);
  }
}

}  // namespace
}  // namespace contextile
