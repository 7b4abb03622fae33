#include "strategy/dcp.h"

#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/partition.h"
#include "schedule/divisions.h"
#include "schedule/home.h"
#include "schedule/rank_layout.h"
#include "strategy/options.h"

namespace contextile {
namespace {

enum class Relays : std::uint8_t { kOn, kOff };

struct DcpOptions {
  std::int32_t divisions = 4;
  double eps_node = 0.4;
  double eps_device = 0.1;
  std::int32_t head_groups = 0;  // 0: one for each KV head
  ResultTiming results = ResultTiming::kAfter;
  Relays relays = Relays::kOn;
  BandCuts cuts = BandCuts::kNone;
  double effort = 1;
};

// The tiles of all masks on one blocking: what is placed.
struct PlacementInput {
  WorkBlocks work;  // workers are decided by the partition
  std::vector<std::vector<Tile>> tiles_of_mask;
  std::vector<Tile> all_tiles;  // union, pairs weighted by layers
};

PlacementInput cut(const Workload& workload, std::int64_t block_size, BandCuts cuts) {
  PlacementInput input;
  input.work.blocks = cut_sequences(workload, block_size, cuts);
  std::map<std::pair<BlockId, BlockId>, std::int64_t> merged;
  for (const NamedMask& mask : workload.masks) {
    input.tiles_of_mask.push_back(TileIndex(mask.mask, input.work.blocks).tiles());
    if (workload.masks.size() == 1) {
      input.all_tiles = input.tiles_of_mask.front();
      return input;
    }
    for (const Tile& tile : input.tiles_of_mask.back()) {
      merged[{tile.q_block, tile.kv_block}] += tile.pairs * mask.layers;
    }
  }
  for (const auto& [blocks, pairs] : merged) {
    input.all_tiles.push_back({blocks.first, blocks.second, pairs});
  }
  return input;
}

AttentionGrid grid_of(const Workload& workload, const PlacementInput& input,
                      std::int32_t head_groups) {
  const AttentionShape& shape = workload.shape;
  AttentionGrid grid;
  grid.head_groups = head_groups;
  grid.row_bytes_per_token = 2 * unit_bytes(Kind::kQ, 1, shape, head_groups, shape.dtype);
  grid.column_bytes_per_token = unit_bytes(Kind::kKv, 1, shape, head_groups, shape.dtype);
  std::int32_t sequence = 0;
  for (std::int32_t b = 0; b < input.work.blocks.num_blocks(); ++b) {
    const BlockId block{b};
    const std::int64_t first = input.work.blocks.ranges(block).front().begin;
    while (workload.sequences[static_cast<std::size_t>(sequence)].end <= first) ++sequence;
    grid.blocks.push_back({input.work.blocks.num_tokens(block), sequence});
  }
  grid.tiles.reserve(input.all_tiles.size() * static_cast<std::size_t>(head_groups));
  for (const Tile& tile : input.all_tiles) {
    for (std::int32_t g = 0; g < head_groups; ++g) {
      grid.tiles.push_back({tile.q_block.value, tile.kv_block.value, g, tile.pairs});
    }
  }
  return grid;
}

// Owners and tile devices for one block size, and what they cost.
struct Placement {
  PlacementInput input;
  AttentionGrid grid;
  GridPartition partition;
  GridQuality quality;
  std::int64_t block_size = 0;
};

class DcpArranger {
 public:
  DcpArranger(const Workload& workload, const Cluster& cluster, const DcpOptions& options,
              const StrategyRequest& request)
      : workload_(workload), cluster_(cluster), options_(options), request_(request) {
    spec_.nodes = cluster.nodes;
    spec_.devices_per_node = cluster.devices_per_node;
    spec_.eps_node = options.eps_node;
    // A device's share of its node, of a node's share of the whole.
    spec_.eps_compute = cluster.nodes > 1 ? (1 + options.eps_node) * (1 + options.eps_device) - 1
                                          : options.eps_device;
    spec_.effort = options.effort;
    spec_.seed = request.seed + 1;
  }

  Arrangement run(std::int64_t& block_size) {
    Placement placement = place();
    block_size = placement.block_size;
    WorkBlocks& work = placement.input.work;
    for (const std::int32_t device : placement.partition.owner) work.workers.emplace_back(device);
    const std::vector<Rank> owners = owners_of(workload_, work);
    Arrangement arrangement;
    ArrangedRound& round = arrangement.rounds.emplace_back();
    round.head_groups = options_.head_groups;
    for (std::size_t m = 0; m < workload_.masks.size(); ++m) {
      round.masks.push_back(workload_.masks[m].mask);
      const std::vector<PlacedTile> tiles = placed_tiles(placement, m);
      ArrangedMask& programs = round.programs.emplace_back();
      programs.forward = schedule(work.blocks, owners, tiles, Direction::kForward);
      if (request_.backward) {
        programs.backward = schedule(work.blocks, owners, tiles, Direction::kBackward);
      }
    }
    round.blocks = std::move(work.blocks);
    round.owners = owners;
    return arrangement;
  }

 private:
  // The paper's search: 3·inter + total bytes, among those that balance within eps; ties to the
  // larger.
  Placement place() {
    if (request_.block_size) return place_with(*request_.block_size);
    constexpr std::array<std::int64_t, 4> kBlockSizes = {4096, 2048, 1024, 512};
    std::array<std::optional<Placement>, kBlockSizes.size()> candidates;
    tbb::parallel_for(std::size_t{0}, kBlockSizes.size(),
                      [&](std::size_t i) { candidates[i] = place_with(kBlockSizes[i]); });
    std::optional<Placement> best;
    for (std::optional<Placement>& candidate : candidates) {
      if (!best || better(candidate->quality, best->quality)) best = std::move(candidate);
    }
    return std::move(*best);
  }

  // How far a placement is out of balance beyond what is allowed: work by eps, tokens by a quarter.
  [[nodiscard]] double excess(const GridQuality& quality) const {
    constexpr double kRounding = 1e-9;
    constexpr double kTokenSlack = 0.25;
    return std::max(0.0, quality.compute_overload - spec_.eps_compute - kRounding) +
           std::max(0.0, quality.token_overload - kTokenSlack - kRounding);
  }

  [[nodiscard]] bool better(const GridQuality& a, const GridQuality& b) const {
    const double excess_a = excess(a);
    const double excess_b = excess(b);
    if (excess_a != excess_b) return excess_a < excess_b;
    return 3 * a.inter_bytes + a.total_bytes < 3 * b.inter_bytes + b.total_bytes;
  }

  [[nodiscard]] Placement place_with(std::int64_t block_size) const {
    CONTEXTILE_CHECK(block_size > 0, "block size: expected a positive number of tokens, found {}",
                     block_size);
    Placement placement;
    placement.block_size = block_size;
    placement.input = cut(workload_, block_size, options_.cuts);
    placement.grid = grid_of(workload_, placement.input, options_.head_groups);
    placement.partition = partition_grid(placement.grid, spec_);
    placement.quality = evaluate(placement.grid, spec_, placement.partition);
    return placement;
  }

  // Every mask's tiles where the union's tile went.
  [[nodiscard]] std::vector<PlacedTile> placed_tiles(const Placement& placement,
                                                     std::size_t m) const {
    std::vector<PlacedTile> placed;
    const auto groups = static_cast<std::size_t>(options_.head_groups);
    std::size_t in_union = 0;
    for (const Tile& tile : placement.input.tiles_of_mask[m]) {
      const auto& all = placement.input.all_tiles;
      while (all[in_union].q_block != tile.q_block || all[in_union].kv_block != tile.kv_block)
        ++in_union;
      for (std::size_t g = 0; g < groups; ++g) {
        placed.push_back({tile.q_block, tile.kv_block, GroupId{static_cast<std::int32_t>(g)},
                          Rank{placement.partition.device[in_union * groups + g]}, 0, tile.pairs});
      }
    }
    return placed;
  }

  [[nodiscard]] ArrangedDirection schedule(const Blocking& blocks, const std::vector<Rank>& owners,
                                           const std::vector<PlacedTile>& tiles,
                                           Direction direction) const {
    const std::vector<UnitRoute> routes = routes_of(blocks, owners, tiles, direction);
    return schedule_divisions({.blocks = &blocks,
                               .owners = owners,
                               .head_groups = options_.head_groups,
                               .num_devices = cluster_.num_devices(),
                               .direction = direction,
                               .shape = workload_.shape,
                               .tiles = tiles,
                               .routes = routes},
                              {.divisions = options_.divisions, .results = options_.results});
  }

  // Every unit that a device reads or adds to without owning it, relayed across nodes.
  [[nodiscard]] std::vector<UnitRoute> routes_of(const Blocking& blocks,
                                                 const std::vector<Rank>& owners,
                                                 const std::vector<PlacedTile>& tiles,
                                                 Direction direction) const {
    struct UnitName {
      Kind kind;
      BlockId block;
      GroupId group;
    };
    std::vector<UnitName> names;
    std::vector<MovingUnit> units;
    for (int k = 0; k < kNumKinds; ++k) {
      const auto kind = static_cast<Kind>(k);
      if (!occurs_in(kind, direction)) continue;
      std::vector<std::vector<std::int32_t>> devices(
          owners.size() * static_cast<std::size_t>(options_.head_groups));
      for (const PlacedTile& tile : tiles) {
        const BlockId block = is_of_kv(kind) ? tile.kv_block : tile.q_block;
        if (owners[block.index()] != tile.device) {
          devices[unit_index(block, tile.group)].push_back(tile.device.value);
        }
      }
      for (std::size_t u = 0; u < devices.size(); ++u) {
        std::sort(devices[u].begin(), devices[u].end());
        devices[u].erase(std::unique(devices[u].begin(), devices[u].end()), devices[u].end());
        if (devices[u].empty()) continue;
        const BlockId block{
            static_cast<std::int32_t>(u / static_cast<std::size_t>(options_.head_groups))};
        const GroupId group{
            static_cast<std::int32_t>(u % static_cast<std::size_t>(options_.head_groups))};
        names.push_back({kind, block, group});
        units.push_back({unit_bytes(kind, blocks.num_tokens(block), workload_.shape,
                                    options_.head_groups, workload_.shape.dtype),
                         owners[block.index()].value, is_result(kind), std::move(devices[u])});
      }
    }
    const std::vector<std::vector<std::int32_t>> via = vias(units);
    std::vector<UnitRoute> routes;
    for (std::size_t u = 0; u < units.size(); ++u) {
      for (std::size_t i = 0; i < units[u].devices.size(); ++i) {
        routes.push_back({names[u].kind, names[u].block, names[u].group, Rank{units[u].devices[i]},
                          Rank{via[u][i]}});
      }
    }
    return routes;
  }

  [[nodiscard]] std::size_t unit_index(BlockId block, GroupId group) const {
    return block.index() * static_cast<std::size_t>(options_.head_groups) + group.index();
  }

  [[nodiscard]] std::vector<std::vector<std::int32_t>> vias(
      const std::vector<MovingUnit>& units) const {
    if (options_.relays == Relays::kOn) {
      return choose_relays(units, cluster_.num_devices(), cluster_.devices_per_node);
    }
    std::vector<std::vector<std::int32_t>> direct;
    for (const MovingUnit& unit : units) direct.emplace_back(unit.devices.size(), unit.owner);
    return direct;
  }

  const Workload& workload_;
  const Cluster& cluster_;
  const DcpOptions& options_;
  const StrategyRequest& request_;
  GridSpec spec_;
};

// Source: Jiang et al., DCP (SOSP 2025), §4: data and computation blocks as a hypergraph, placed on
// nodes, then devices (§4.2), scheduled in divisions (Listing 3); the partitioner is our own
// (docs/partition.md). Steps: T divisions; the first needs no communication, results go home after
// the last. Bytes: what the placement needs; each unit crosses a node boundary once (relays; the
// original sends it to every device). Memory: all remote units of two divisions, and an accumulator
// for every remote result. Loses where little communication is left to save and much of it stays
// exposed: long causal documents on few devices (the paper's §7.5).
class DcpStrategy : public Strategy {
 public:
  DcpStrategy() {
    table_.integer("T", &DcpOptions::divisions, 2, 1 << 10, "divisions of the schedule");
    table_.real("eps_node", &DcpOptions::eps_node, 0, 100,
                "compute imbalance allowed between nodes");
    table_.real("eps_device", &DcpOptions::eps_device, 0, 100,
                "compute imbalance allowed between a node's devices");
    table_.integer("head_groups", &DcpOptions::head_groups, 0, 1 << 16,
                   "groups the KV heads are split into, a divisor of them; 0: one each");
    table_.choice(
        "results", &DcpOptions::results, {"after", "early"},
        "partial results leave after all attention, as the original's, or after a device's last "
        "tile of the unit: after, early");
    table_.choice("relays", &DcpOptions::relays, {"on", "off"},
                  "a unit crosses a node boundary once and is passed on inside: on, off");
    table_.choice("cuts", &DcpOptions::cuts, {"none", "edges"},
                  "blocks end every block_size tokens, as the original's, or also where bands of "
                  "the masks begin or end, in long sequences: none, edges");
    table_.real("effort", &DcpOptions::effort, 0.01, 1000,
                "partitioning steps, in multiples of the fast setting");
  }

  [[nodiscard]] std::string_view name() const override { return "dcp"; }
  [[nodiscard]] std::string_view summary() const override {
    return "DCP: data and tiles placed by hypergraph partitioning, scheduled in divisions";
  }
  [[nodiscard]] std::vector<OptionSpec> options() const override { return table_.specs(); }

  [[nodiscard]] std::optional<std::string> unsupported(
      const Workload& workload, const Cluster& cluster,
      const StrategyRequest& request) const override {
    const DcpOptions options = table_.parse(name(), request.options);
    const std::int32_t groups = options.head_groups;
    if (groups > 0 && workload.shape.kv_heads % groups != 0) {
      return fmt::format("splits heads into {} groups: expected a divisor of {} KV heads", groups,
                         workload.shape.kv_heads);
    }
    constexpr std::int32_t kMaxDevicesPerNode = 64;
    if (cluster.devices_per_node > kMaxDevicesPerNode) {
      return fmt::format("places on at most {} devices a node, found {}", kMaxDevicesPerNode,
                         cluster.devices_per_node);
    }
    return std::nullopt;
  }

  [[nodiscard]] Arrangement arrange(const Workload& workload, const Cluster& cluster,
                                    const StrategyRequest& request) const override {
    if (const auto reason = unsupported(workload, cluster, request)) {
      fail_argument("strategy {}: {}", name(), *reason);
    }
    DcpOptions options = table_.parse(name(), request.options);
    if (options.head_groups == 0) options.head_groups = workload.shape.kv_heads;
    std::int64_t block_size = 0;
    Arrangement arrangement = DcpArranger(workload, cluster, options, request).run(block_size);
    arrangement.strategy = name();
    arrangement.options = table_.print(options);
    arrangement.options["block_size"] = fmt::format("{}", block_size);
    arrangement.partial_wire = request.wire.value_or(Dtype::kF32);
    return arrangement;
  }

 private:
  OptionTable<DcpOptions> table_;
};

}  // namespace

const Strategy& dcp_strategy() {
  static const DcpStrategy kStrategy;
  return kStrategy;
}

}  // namespace contextile
