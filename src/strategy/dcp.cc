#include "strategy/dcp.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/extend/partition.h"
#include "contextile/extend/strategies.h"
#include "strategy/dcp_hypergraph.h"
#include "strategy/grid_placement.h"
#include "strategy/schedule/divisions.h"
#include "strategy/schedule/home.h"
#include "strategy/schedule/rank_layout.h"
#include "strategy/typed_strategy.h"

namespace contextile {
namespace {

// The block sizes of the paper (§7.1), largest first.
constexpr std::array<std::int64_t, 4> kBlockSizes = {4096, 2048, 1024, 512};

// The grid engine places on at most this many devices per node.
constexpr std::int32_t kMaxGridDevicesPerNode = 64;

// Owners of blocks and devices of tiles for one block size.
struct Placement {
  TileGrid input;
  AttentionGrid grid;
  GridPartition partition;
};

class DcpArranger {
 public:
  DcpArranger(const Workload& workload, const Cluster& cluster, const DcpOptions& options,
              const StrategyRequest& request)
      : workload_(workload), cluster_(cluster), options_(options), request_(request) {
    spec_.nodes = cluster.nodes;
    spec_.devices_per_node = cluster.devices_per_node;
    spec_.bounds = GridBounds::kNested;
    spec_.eps_node = options.eps_node;
    spec_.eps_compute = options.eps_device;
    spec_.data_tolerance = options.data_tolerance;
    spec_.effort = options.effort;
    spec_.seed = request.seed + 1;
  }

  Arrangement run(std::int64_t block_size) {
    Placement placement = place(block_size);
    WorkBlocks& work = placement.input.work;
    work.workers.assign(placement.partition.owner.begin(), placement.partition.owner.end());
    const std::vector<Rank> owners = owners_of(workload_, work);
    Arrangement arrangement;
    ArrangedRound& round = arrangement.rounds.emplace_back();
    round.head_groups = options_.head_groups;
    for (std::size_t m = 0; m < workload_.masks.size(); ++m) {
      round.masks.push_back(workload_.masks[m].mask);
      const std::vector<PlacedTile> tiles =
          placed_tiles(placement.input, m, options_.head_groups, placement.partition);
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
  [[nodiscard]] Placement place(std::int64_t block_size) const {
    CONTEXTILE_CHECK(block_size > 0, "block size: expected a positive number of tokens, found {}",
                     block_size);
    Placement placement;
    placement.input =
        cut_into_tiles(workload_, cut_sequences(workload_, block_size, options_.cuts));
    const AttentionShape& shape = workload_.shape;
    const std::int32_t groups = options_.head_groups;
    std::vector<std::int64_t> work;
    for (const Tile& tile : placement.input.all_tiles) work.push_back(tile.pairs);
    placement.grid = attention_grid(workload_, placement.input, groups,
                                    {2 * unit_bytes(Kind::kQ, 1, shape, groups, shape.dtype),
                                     unit_bytes(Kind::kKv, 1, shape, groups, shape.dtype)},
                                    work);
    placement.partition = options_.partitioner == Partitioner::kGrid
                              ? partition_grid(placement.grid, spec_)
                              : partition_as_hypergraph(placement.grid, spec_);
    return placement;
  }

  [[nodiscard]] ArrangedDirection schedule(const Blocking& blocks, const std::vector<Rank>& owners,
                                           const std::vector<PlacedTile>& tiles,
                                           Direction direction) const {
    ScheduleProblem problem = schedule_problem(
        workload_, cluster_,
        {.blocks = blocks, .owners = owners, .tiles = tiles, .head_groups = options_.head_groups},
        direction);
    if (options_.relays) relay_across_nodes(problem);
    return schedule_divisions(
        problem,
        {.divisions = options_.divisions, .share = options_.share, .results = options_.results});
  }

  const Workload& workload_;
  const Cluster& cluster_;
  const DcpOptions& options_;
  const StrategyRequest& request_;
  GridSpec spec_;
};

// Source: Jiang et al., DCP (SOSP 2025), §4: data and computation blocks as a hypergraph, placed on
// nodes, then devices (§4.2), scheduled in divisions (Listing 3). The partitioner is Contextile's
// own (docs/partition.md). Steps: T divisions; the first needs no communication, results go home
// after the last. Bytes: the units that the placement needs, one copy per device, even across
// nodes. With relays=on, which the paper does not have, a unit crosses a node boundary once.
// Memory: all remote units of two divisions, and an accumulator for every remote result. Loses
// where little communication can be saved and much of it stays exposed: long causal documents (§7.5
// of the paper).
class DcpStrategy : public TypedStrategy<DcpOptions> {
 public:
  DcpStrategy()
      : TypedStrategy({"dcp",
                       "DCP: data and tiles placed by hypergraph partitioning, scheduled in "
                       "divisions",
                       PartialWire::kF32},
                      option_table()) {}

 protected:
  [[nodiscard]] std::optional<std::string> unsupported_with(
      const Workload& workload, const Cluster& cluster, const DcpOptions& options) const override {
    const std::int32_t groups = options.head_groups;
    if (groups > 0 && workload.shape.kv_heads % groups != 0) {
      return fmt::format("splits heads into {} groups: expected a divisor of {} KV heads", groups,
                         workload.shape.kv_heads);
    }
    if (options.partitioner == Partitioner::kGrid &&
        cluster.devices_per_node > kMaxGridDevicesPerNode) {
      return fmt::format("partitioner=grid places on at most {} devices a node, found {}",
                         kMaxGridDevicesPerNode, cluster.devices_per_node);
    }
    return std::nullopt;
  }

  [[nodiscard]] std::vector<std::int64_t> block_sizes_with(const StrategyRequest& request,
                                                           const DcpOptions&) const override {
    if (request.block_size) return {};
    return {kBlockSizes.begin(), kBlockSizes.end()};
  }

  [[nodiscard]] std::vector<DcpOptions> variants_with(const Workload&, const Cluster& cluster,
                                                      const StrategyRequest&) const override {
    // The published method, and the fastest of its looser forms: with even tokens, and where these
    // cost nothing.
    const bool relays = cluster.nodes > 1;
    return {
        DcpOptions{},
        DcpOptions{.share = PairShare::kReached, .results = ResultTiming::kEarly, .relays = relays},
        DcpOptions{.data_tolerance = 1, .share = PairShare::kReached, .relays = relays}};
  }

  [[nodiscard]] Arrangement arrange_with(const Workload& workload, const Cluster& cluster,
                                         const StrategyRequest& request,
                                         DcpOptions& options) const override {
    if (options.head_groups == 0) options.head_groups = workload.shape.kv_heads;
    const std::int64_t block_size = request.block_size.value_or(kBlockSizes.front());
    Arrangement arrangement = DcpArranger(workload, cluster, options, request).run(block_size);
    arrangement.options["block_size"] = fmt::format("{}", block_size);
    return arrangement;
  }

 private:
  static OptionTable<DcpOptions> option_table() {
    OptionTable<DcpOptions> table;
    return table
        .integer("divisions", &DcpOptions::divisions, 2, 1 << 10, "divisions of the schedule")
        .real("eps_node", &DcpOptions::eps_node, 0, 100,
              "compute of a node above the mean of nodes, as a share of it")
        .real("eps_device", &DcpOptions::eps_device, 0, 100,
              "compute of a device above the mean of its own node, as a share of it")
        .real("data_tolerance", &DcpOptions::data_tolerance, 0, 1 << 20,
              "blocks that a node or a device may own beyond what packing them longest first needs")
        .integer("head_groups", &DcpOptions::head_groups, 0, 1 << 16,
                 "groups the KV heads are split into, a divisor of them; 0: one each")
        .choice("share", &DcpOptions::share, {"within", "reached"},
                "a tile waits if it would take a pair of devices above its share of a division, as "
                "in the original, or only once the pair has reached it: within, reached")
        .choice("results", &DcpOptions::results, {"after", "early"},
                "partial results leave after all attention, as the original's, or after a "
                "device's last tile of the unit: after, early")
        .on_off(
            "relays", &DcpOptions::relays,
            "a unit crosses a node boundary once and is passed on inside; off, as the original: "
            "every device is sent its own copy: on, off")
        .choice("cuts", &DcpOptions::cuts, {"none", "edges"},
                "blocks end every block_size tokens, as the original's, or also where bands of "
                "the masks begin or end, in long sequences: none, edges")
        .real("effort", &DcpOptions::effort, 0.01, 1000,
              "partitioning steps, in multiples of the fast setting")
        .choice("partitioner", &DcpOptions::partitioner, {"grid", "hypergraph"},
                "what places: the engine that knows grids of tiles, or the general one on the "
                "paper's hypergraph, which is slower: grid, hypergraph");
  }
};

const DcpStrategy& dcp() {
  static const DcpStrategy kStrategy;
  return kStrategy;
}

}  // namespace

const Strategy& dcp_strategy() { return dcp(); }

StrategyChoice choice_of(const DcpOptions& options) { return dcp().choice(options); }

}  // namespace contextile
