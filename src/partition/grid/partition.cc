// The driver of the partitioner: it coarsens the grid, chooses nodes, chooses devices, anneals both
// together, and refines level by level.
#include "contextile/extend/partition.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/parallel_for.h"
#include "partition/grid/anneal.h"
#include "partition/grid/level.h"
#include "partition/grid/refine.h"
#include "partition/grid/starts.h"

namespace contextile {
namespace {

// Tuned on packed batches of 131072 tokens under causal and sparse masks, on 4 x 8 devices. Steps
// are per tile of the level and are multiplied by GridSpec::effort. Temperatures are in mean row
// bytes.
struct Tuning {
  double tile_share = 0.07;  // coarsen until a tile is this share of a device's work
  // A coarse block has at most this many times a device's tokens, or those of the largest fine
  // block.
  std::int64_t coarse_means = 2;
  std::int64_t coarse_blocks = 8;
  double node_steps = 50;
  double inside_steps = 100;
  double joint_steps = 75;
  double fine_steps = 25;
  double tight_steps = 50;
  double node_heat = 0.375;
  double inside_heat = 0.5;
  double joint_heat = 0.2;
  double fine_heat = 0.08;
  double tight_heat = 0.08;
  double cold = 0.03;
  double joint_cold = 0.015;
  double fine_cold = 0.006;
  std::int32_t max_fine_tiles = 4000;  // levels with more tiles are only refined greedily
};

// Tokens that a device and a node may own.
struct TokenCaps {
  std::int64_t device = 0;
  std::int64_t node = 0;
};

// The parts of one level of the machine: nodes of equal devices, each device with a share of the
// work.
struct Machine {
  LaneLayout layout;
  IdVector<Lane, double> share;  // empty: all equal
  double mean_work = 0;          // of a device with share 1, of the whole problem
  double eps_compute = 0;
  double eps_node = 0;
  std::int64_t token_cap = 0;      // of a device with share 1
  std::optional<NodeLimits> node;  // of nodes; they also hold after devices are chosen
  std::optional<TokenCaps> tight;  // caps of the result, if the search has more room
  std::int64_t node_weight = 0;
};

// Bounds of devices and nodes of the whole machine.
struct MachineBounds {
  double mean_work = 0;  // of a device
  std::int64_t token_cap = 0;
  std::optional<NodeLimits> node;
  std::optional<TokenCaps> tight;
};

// An assignment to a machine's own devices. A group of nodes is one device while groups are chosen.
using Assignment = GridPartition;

std::vector<std::int64_t> held_sizes(const GridLevel& level) {
  std::vector<std::int64_t> sizes;
  for (const GridLevel::LevelBlock& block : level.blocks) sizes.push_back(block.held_tokens);
  return sizes;
}

std::int64_t largest(const std::vector<std::int64_t>& sizes) {
  return sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
}

// Partitions one level of the machine, all its parts at once.
class JointPartitioner {
 public:
  JointPartitioner(GridLevel finest, const Machine& machine, const GridSpec& spec)
      : machine_(machine), spec_(spec), random_(spec.seed) {
    const auto devices = static_cast<double>(machine.layout.num_devices());
    limits_.mean_work = std::max(1.0, machine.mean_work);
    limits_.work_cap = 1 + machine.eps_compute;
    limits_.token_cap = machine.token_cap;
    limits_.node = machine.node;
    limits_.share = machine.share;
    limits_.node_weight = machine.node_weight;
    limits_.inter_weight = spec.inter_weight;
    const double row_bytes = static_cast<double>(finest.total_held_tokens) *
                             static_cast<double>(finest.row_bytes_per_token) * finest.num_groups /
                             devices;
    limits_.work_penalty = 18 * row_bytes;  // enough to make overload never pay
    limits_.token_penalty = 60 * row_bytes;
    finest_block_tokens_ = largest(held_sizes(finest));
    const auto mean_tokens =
        static_cast<std::int64_t>(static_cast<double>(finest.total_held_tokens) / devices);
    std::int64_t largest_tokens = 0;  // also of blocks held outside
    for (const GridLevel::LevelBlock& block : finest.blocks) {
      largest_tokens = std::max(largest_tokens, block.tokens);
    }
    levels_ = coarsen_all(
        std::move(finest), limits_.mean_work, tuning_.tile_share,
        std::max(tuning_.coarse_means * mean_tokens, tuning_.coarse_blocks * largest_tokens));
  }

  Assignment run() {
    GridState state = partition_coarsest();
    refine(state);
    for (std::size_t l = levels_.size() - 1; l-- > 0;) {
      state = project(state, l);
      if (levels_[l].num_tiles() <= tuning_.max_fine_tiles) {
        anneal_level(state, tuning_.fine_steps, tuning_.fine_heat, tuning_.fine_cold);
      }
      if (l == 0) repair_tokens(state);
      refine(state);
    }
    if (levels_.size() == 1) repair_tokens(state);
    if (machine_.tight) tighten(state);
    repair_work(state);
    Assignment result;
    for (const Lane lane : state.owner) result.owner.push_back(machine_.layout.device(lane));
    for (const Lane lane : state.place) result.device.push_back(machine_.layout.device(lane));
    return result;
  }

 private:
  void anneal_level(GridState& state, double steps, double heat, double cold) {
    const double row_bytes = std::max(1.0, state.level->mean_row_bytes());
    anneal(state,
           {static_cast<std::int64_t>(steps * spec_.effort * state.level->num_tiles()),
            heat * row_bytes, cold * row_bytes},
           random_);
  }

  // Returns limits for a level whose blocks may be larger than a device's token cap.
  [[nodiscard]] GridLimits limits_on(const GridLevel& level) const {
    GridLimits limits = limits_;
    const std::int64_t largest_block = largest(held_sizes(level));
    limits.token_cap = std::max(limits.token_cap, largest_block);
    if (limits.node) limits.node->tokens = std::max(limits.node->tokens, largest_block);
    return limits;
  }

  // Partitions the coarsest level: chooses nodes first, then devices inside the nodes, then anneals
  // both together with the traffic term.
  GridState partition_coarsest() {
    const GridLevel& level = levels_.back();
    const LaneLayout& layout = machine_.layout;
    const bool two_levels = layout.nodes > 1 && layout.devices_per_node > 1;
    GridState state(level, layout, limits_on(level));
    if (two_levels) {
      const GridState nodes = choose_nodes(level);
      state.place = nodes.place;
      state.owner = nodes.owner;
      start_inside_nodes(state);
      state.reach = Reach::kInsides;
      anneal_level(state, tuning_.inside_steps, tuning_.inside_heat, tuning_.cold);
      state.reach = Reach::kAll;
    } else {
      state = best_of_starts(state, tuning_.inside_steps, tuning_.inside_heat);
    }
    state.set_traffic_weight(spec_.traffic_weight);
    anneal_level(state, tuning_.joint_steps, tuning_.joint_heat, tuning_.joint_cold);
    return state;
  }

  GridState choose_nodes(const GridLevel& level) {
    const LaneLayout& layout = machine_.layout;
    GridLimits limits = limits_;
    limits.mean_work *= layout.devices_per_node;
    limits.work_cap = 1 + machine_.eps_node;
    limits.node.reset();
    // Everything crosses nodes here, so a larger weight would only make annealing colder.
    constexpr std::int64_t kTunedNodeWeight = 3;
    limits.node_weight = std::min(limits.node_weight, kTunedNodeWeight);
    const std::vector<std::int64_t> sizes = held_sizes(level);
    constexpr std::int64_t kSlackBlocks = 4;
    limits.token_cap = longest_first_max(sizes, layout.nodes);
    if (machine_.node) {
      limits.token_cap = std::max(limits.token_cap, machine_.node->tokens);
    } else if (largest(sizes) <= finest_block_tokens_) {
      limits.token_cap += kSlackBlocks * finest_block_tokens_;
    }
    GridState state(level, layout, limits);
    state.reach = Reach::kNodes;
    return best_of_starts(state, tuning_.node_steps, tuning_.node_heat);
  }

  // Anneals two very different starts and keeps the better result.
  GridState best_of_starts(const GridState& empty, double steps, double heat) {
    GridState contiguous = empty;
    GridState greedy = empty;
    start_contiguous(contiguous);
    start_greedy(greedy);
    for (GridState* state : {&contiguous, &greedy}) {
      anneal_level(*state, steps, heat, tuning_.cold);
    }
    return std::move(greedy.energy() < contiguous.energy() ? greedy : contiguous);
  }

  GridState project(const GridState& coarse, std::size_t l) const {
    const GridLevel& fine = levels_[l];
    const GridLevel& level = levels_[l + 1];
    GridState state(fine, machine_.layout, l == 0 ? limits_ : limits_on(fine));
    for (const TileId t : fine.tiles.ids()) state.place[t] = coarse.place[level.coarse_tile[t]];
    for (const BlockId b : fine.blocks.ids()) state.owner[b] = coarse.owner[level.coarse_block[b]];
    state.rebuild();
    state.set_traffic_weight(coarse.traffic_weight());
    return state;
  }

  // Brings a partition of the finest level below the tight caps. Annealing moves blocks together
  // with their tiles, which moves of owners alone would leave behind.
  void tighten(GridState& state) {
    GridLimits limits = limits_;
    limits.token_cap = machine_.tight->device;
    if (limits.node) limits.node->tokens = machine_.tight->node;
    GridState tight(levels_.front(), machine_.layout, limits);
    tight.place = state.place;
    tight.owner = state.owner;
    tight.rebuild();
    tight.set_traffic_weight(state.traffic_weight());
    const double row_bytes = std::max(1.0, tight.level->mean_row_bytes());
    const std::int32_t tiles = std::min(tight.level->num_tiles(), tuning_.max_fine_tiles);
    anneal(tight,
           {static_cast<std::int64_t>(tuning_.tight_steps * spec_.effort * tiles),
            tuning_.tight_heat * row_bytes, tuning_.fine_cold * row_bytes},
           random_);
    repair_tokens(tight);
    refine(tight);
    state = std::move(tight);
  }

  // Greedy refinement counts bytes only; the traffic term is switched off for it.
  void refine(GridState& state) {
    constexpr int kPasses = 6;
    const double traffic_weight = state.traffic_weight();
    state.set_traffic_weight(0);
    for (int pass = 0; pass < kPasses; ++pass) {
      const std::int64_t gain = refine_tiles(state, random_);
      refine_owners(state);
      if (gain == 0 && pass > 0) break;
    }
    state.set_traffic_weight(traffic_weight);
  }

  Machine machine_;
  GridSpec spec_;
  Tuning tuning_;
  FastRandom random_;
  GridLimits limits_;
  std::int64_t finest_block_tokens_ = 0;
  std::vector<GridLevel> levels_;  // fine to coarse
};

// A group of nodes, which is one device of the machine that chooses groups.
struct NodeGroup {
  std::int32_t nodes = 0;
  Rank first_device{0};
};

// Returns groups that have `nodes` nodes together and sizes that differ by at most one.
IdVector<Rank, NodeGroup> even_groups(std::int32_t nodes, std::int32_t groups,
                                      std::int32_t devices_per_node) {
  IdVector<Rank, NodeGroup> result;
  Rank first_device{0};
  for (const Rank g : IdRange<Rank>(groups)) {
    const std::int32_t size = nodes / groups + (g.value < nodes % groups ? 1 : 0);
    result.push_back({size, first_device});
    first_device.value += size * devices_per_node;
  }
  return result;
}

// Returns the machine of `nodes` nodes with its bounds. If there is one node, or one device per
// node, only one of the two levels of bounds remains.
Machine machine_of(std::int32_t nodes, std::int64_t total_work, const GridSpec& spec,
                   const MachineBounds& bounds) {
  Machine machine{.layout = {nodes, spec.devices_per_node},
                  .share = {},
                  .mean_work = bounds.mean_work,
                  .eps_compute = spec.eps_compute,
                  .eps_node = spec.eps_node,
                  .token_cap = bounds.token_cap,
                  .node = bounds.node,
                  .tight = bounds.tight,
                  .node_weight = spec.node_weight};
  if (!machine.node) return machine;
  if (nodes == 1) machine.mean_work = static_cast<double>(total_work) / spec.devices_per_node;
  if (spec.devices_per_node == 1) machine.eps_compute = spec.eps_node;
  if (nodes == 1 || spec.devices_per_node == 1) machine.node.reset();
  return machine;
}

// Partitions over more devices than lanes: over groups of nodes first, then inside each group.
Assignment partition_nodes(GridLevel finest, std::int32_t nodes, const GridSpec& spec,
                           const MachineBounds& bounds);

Assignment partition_in_groups(const GridLevel& finest, std::int32_t nodes, const GridSpec& spec,
                               const MachineBounds& bounds) {
  std::int32_t nodes_that_fit = 1;
  while (LaneLayout::fits(2 * nodes_that_fit, spec.devices_per_node)) nodes_that_fit *= 2;
  const std::int32_t groups = std::min(kMaxLanes, (nodes + nodes_that_fit - 1) / nodes_that_fit);
  const IdVector<Rank, NodeGroup> node_groups = even_groups(nodes, groups, spec.devices_per_node);
  const double mean_nodes = static_cast<double>(nodes) / groups;
  const double mean_devices = mean_nodes * spec.devices_per_node;
  Machine outer{.layout = {groups, 1},
                .share = {},
                .mean_work = bounds.mean_work * mean_devices,
                .node = {},
                .tight = {}};
  for (const NodeGroup& group : node_groups) outer.share.push_back(group.nodes / mean_nodes);
  outer.eps_compute = spec.eps_node;
  outer.token_cap = static_cast<std::int64_t>(static_cast<double>(bounds.token_cap) * mean_devices);
  const Assignment group_of = JointPartitioner(finest, outer, spec).run();
  Assignment result{IdVector<BlockId, Rank>(finest.blocks.ids()),
                    IdVector<TileId, Rank>(finest.tiles.ids())};
  // Every group writes its own tiles and blocks, so the result does not depend on the threads.
  parallel_for(0, groups, [&](std::int32_t g) {
    const Rank group{g};
    IdVector<TileId, bool> keep(finest.tiles.ids());
    IdVector<BlockId, bool> held(finest.blocks.ids());
    for (const TileId t : keep.ids()) keep[t] = group_of.device[t] == group;
    for (const BlockId b : held.ids()) held[b] = group_of.owner[b] == group;
    SubGrid sub = sub_grid(finest, keep, held);
    const auto [group_nodes, first_device] = node_groups[group];
    const Assignment inner = partition_nodes(std::move(sub.level), group_nodes, spec, bounds);
    for (const TileId t : sub.tile_of.ids()) {
      result.device[sub.tile_of[t]] = Rank{first_device.value + inner.device[t].value};
    }
    for (const BlockId b : sub.block_of.ids()) {
      const BlockId whole = sub.block_of[b];
      if (held[whole]) result.owner[whole] = Rank{first_device.value + inner.owner[b].value};
    }
  });
  return result;
}

Assignment partition_nodes(GridLevel finest, std::int32_t nodes, const GridSpec& spec,
                           const MachineBounds& bounds) {
  if (!LaneLayout::fits(nodes, spec.devices_per_node)) {
    return partition_in_groups(finest, nodes, spec, bounds);
  }
  const Machine machine = machine_of(nodes, finest.total_work, spec, bounds);
  return JointPartitioner(std::move(finest), machine, spec).run();
}

}  // namespace

GridPartition partition_grid(const AttentionGrid& grid, const GridSpec& spec) {
  CONTEXTILE_CHECK(
      spec.nodes >= 1 && spec.devices_per_node >= 1 && spec.devices_per_node <= kMaxLanes,
      "partition: expected at least one node of 1 to {} devices, found {} x {}", kMaxLanes,
      spec.nodes, spec.devices_per_node);
  GridLevel finest = finest_level(grid);
  const std::vector<std::int64_t> sizes = held_sizes(finest);
  const std::int32_t devices = spec.nodes * spec.devices_per_node;
  MachineBounds bounds{.mean_work = static_cast<double>(finest.total_work) / devices,
                       .token_cap = spec.token_cap,
                       .node = {},
                       .tight = {}};
  std::optional<NestedBounds> nested;
  if (spec.bounds == GridBounds::kNested) {
    nested = nested_bounds(grid, spec);
    // A block of room lets the search move blocks one by one. Blocks that it leaves above the
    // bounds are moved afterwards, cheapest bytes first.
    GridSpec with_room = spec;
    with_room.data_tolerance = std::max(1.0, spec.data_tolerance);
    const NestedBounds room = nested_bounds(grid, with_room);
    bounds.token_cap = room.device_tokens;
    bounds.node = {room.node_work, room.node_tokens};
    if (spec.data_tolerance < 1) bounds.tight = {nested->device_tokens, nested->node_tokens};
  } else if (spec.token_cap == 0) {
    bounds.token_cap = longest_first_max(sizes, devices) + largest(sizes);
  }
  CONTEXTILE_CHECK(largest(sizes) <= bounds.token_cap,
                   "partition: expected blocks of at most {} tokens (the token cap), found {}",
                   bounds.token_cap, largest(sizes));
  GridPartition partition = partition_nodes(std::move(finest), spec.nodes, spec, bounds);
  if (nested) hold_nested_bounds(grid, spec, *nested, partition);
  return partition;
}

}  // namespace contextile
