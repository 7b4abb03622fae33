// DCP's three constraints, recomputed from finished arrangements and plans: work of nodes, work of
// devices in their nodes, and tokens of both.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/base.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategies.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "strategy/dcp_cases.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

using Weights = std::vector<std::int64_t>;

std::int64_t sum_of(const Weights& weights) {
  return std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
}

// Packs weights, heaviest first, each into the part with the least. Returns the load of the fullest
// part.
std::int64_t packed_longest_first(Weights weights, std::int32_t parts) {
  std::sort(weights.begin(), weights.end(), std::greater<>());
  Weights held(static_cast<std::size_t>(parts));
  for (const std::int64_t weight : weights) *std::min_element(held.begin(), held.end()) += weight;
  return *std::max_element(held.begin(), held.end());
}

// Returns the bound of a part's work: (1 + eps) of the mean, or what packing its items needs.
double work_bound(const Weights& items, std::int32_t parts, double eps) {
  return std::max((1 + eps) * static_cast<double>(sum_of(items)) / parts,
                  static_cast<double>(packed_longest_first(items, parts)));
}

std::size_t node_of(Rank device, const Cluster& cluster) {
  return static_cast<std::size_t>(device.value / cluster.devices_per_node);
}

// Weights of tiles or blocks, by the device or the node they are on.
using Items = std::map<std::size_t, Weights>;

void expect_work(const std::vector<PlacedTile>& tiles, const Cluster& cluster,
                 const DcpOptions& options) {
  Weights all;
  Items of_node;
  Items of_device;
  for (const PlacedTile& tile : tiles) {
    all.push_back(tile.pairs);
    of_node[node_of(tile.device, cluster)].push_back(tile.pairs);
    of_device[tile.device.index()].push_back(tile.pairs);
  }
  const double rounding = 1 + 1e-12;
  for (const auto& [node, items] : of_node) {
    EXPECT_LE(sum_of(items), work_bound(all, cluster.nodes, options.eps_node) * rounding)
        << "node " << node;
  }
  for (const auto& [device, items] : of_device) {
    const Weights& own = of_node[node_of(Rank{static_cast<std::int32_t>(device)}, cluster)];
    EXPECT_LE(sum_of(items),
              work_bound(own, cluster.devices_per_node, options.eps_device) * rounding)
        << "device " << device;
  }
}

void expect_tokens(const ArrangedRound& round, const Cluster& cluster, const DcpOptions& options) {
  Weights sizes;
  Items of_node;
  Items of_device;
  for (const BlockId b : IdRange<BlockId>(round.blocks.num_blocks())) {
    sizes.push_back(round.blocks.num_tokens(b));
    const Rank owner = round.owners[b.index()];
    of_node[node_of(owner, cluster)].push_back(sizes.back());
    of_device[owner.index()].push_back(sizes.back());
  }
  const double tolerated =
      options.data_tolerance * static_cast<double>(*std::max_element(sizes.begin(), sizes.end()));
  const auto bound = [&](std::int32_t parts) {
    return static_cast<double>(packed_longest_first(sizes, parts)) + tolerated;
  };
  for (const auto& [node, items] : of_node) {
    EXPECT_LE(sum_of(items), bound(cluster.nodes)) << "node " << node;
  }
  for (const auto& [device, items] : of_device) {
    // Packing a node's own blocks may need more than packing those of all nodes.
    const Weights& own = of_node[node_of(Rank{static_cast<std::int32_t>(device)}, cluster)];
    const auto packed = static_cast<double>(packed_longest_first(own, cluster.devices_per_node));
    EXPECT_LE(sum_of(items), std::max(bound(cluster.num_devices()), packed)) << "device " << device;
  }
}

// Checks that the plan computes and owns what the arrangement says.
void expect_same_in_plan(const ArrangedRound& round, const PlanStats& stats) {
  const std::vector<PlacedTile>& tiles = round.programs.front().forward->tiles;
  std::vector<double> pairs(stats.forward->devices.size());
  double all = 0;
  for (const PlacedTile& tile : tiles) {
    pairs[tile.device.index()] += static_cast<double>(tile.pairs);
    all += static_cast<double>(tile.pairs);
  }
  for (std::size_t d = 0; d < pairs.size(); ++d) {
    EXPECT_NEAR(stats.forward->devices[d].flops / stats.forward->flops, pairs[d] / all, 1e-9);
  }
}

DcpOptions random_options(Rng& rng) {
  DcpOptions options;
  if (random_chance(rng, 0.5)) options.eps_node = any_of(rng, {0.0, 0.02, 0.1, 1.0});
  if (random_chance(rng, 0.5)) options.eps_device = any_of(rng, {0.0, 0.05, 0.4});
  if (random_chance(rng, 0.3)) options.data_tolerance = any_of(rng, {0.5, 1.0, 2.0, 4.0});
  if (random_chance(rng, 0.3)) options.cuts = BandCuts::kEdges;
  if (random_chance(rng, 0.3)) options.head_groups = 1;
  options.relays = random_chance(rng, 0.3);
  options.effort = any_of(rng, {0.1, 1.0});
  return options;
}

void check_one(Rng& rng, DcpOptions options, std::int64_t block_size, std::int64_t most_tokens) {
  const auto [nodes, devices] = any_of(rng, kMachines);
  const Cluster cluster = cluster_of(nodes, devices);
  const std::string mask = any_of(rng, kMasks);
  AttentionShape shape = grouped_heads();
  shape.kv_heads = any_of(rng, {1, 2, 4});
  StrategyRequest request;
  request.options = choice_of(options).options;
  request.block_size = block_size;
  request.seed = rng.next() % 1000;
  const Workload workload =
      batch_of(batch_lengths(rng, random_between(rng, 1 << 12, most_tokens)), mask, shape);
  SCOPED_TRACE(fmt::format("{} {}x{} block {} {} tokens {}", mask, nodes, devices, block_size,
                           choice_text(choice_of(options)), workload.num_tokens()));
  const Arrangement arrangement = find_strategy("dcp").arrange(workload, cluster, request);
  const ArrangedRound& round = arrangement.rounds.front();
  expect_work(round.programs.front().forward->tiles, cluster, options);
  expect_work(round.programs.front().backward->tiles, cluster, options);
  expect_tokens(round, cluster, options);
  expect_same_in_plan(round, statistics(build_plan(workload, cluster, arrangement)));
}

TEST(DcpConstraints, HoldForAnyBatchMaskClusterAndBlockSize) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const DcpOptions options = random_options(rng);
    check_one(rng, options, any_of(rng, kBlockSizes), 1 << 17);
  }
}

TEST(DcpConstraints, HoldWithTheGeneralPartitioner) {
  for (std::uint64_t seed = 1; seed <= 80; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(1000 + seed);
    DcpOptions options = random_options(rng);
    options.partitioner = Partitioner::kHypergraph;
    options.effort = 0.1;
    check_one(rng, options, any_of(rng, {2048, 4096}), 1 << 16);
  }
}

TEST(DcpConstraints, HoldWithTheDefaultsOnLargeBlocks) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(2000 + seed);
    check_one(rng, {}, 4096, 1 << 18);
  }
}

}  // namespace
}  // namespace contextile
