// Partitions attention: decides which device owns each token block and which computes each tile. It
// knows grids of tiles, never masks; partition_hypergraph (extend/hypergraph.h) takes any
// hypergraph.
//
//   AttentionGrid grid = {.row_bytes_per_token = 4096, .column_bytes_per_token = 2048};
//   const BlockId block = grid.blocks.push_back({.tokens = 4096});
//   grid.tiles.push_back({.row = block, .column = block, .work = 1});
//   const GridPartition partition = partition_grid(grid, {.nodes = 1, .devices_per_node = 8});
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// ------------------------------------------------------------------------- grids of tiles

using TileId = Id<struct GridTileTag>;      // a tile of a grid, in the order it lists them
using SequenceId = Id<struct SequenceTag>;  // a sequence of token blocks, from 0

// A token block: one row and one column of the grid for every head group.
struct GridBlock {
  std::int64_t tokens = 0;
  SequenceId sequence{0};  // blocks of a sequence are consecutive, in token order
};

struct GridTile {
  BlockId row{0};         // query block
  BlockId column{0};      // key block
  GroupId group{0};       // head group
  std::int64_t work = 0;  // > 0, any unit
};

// Tiles on (query block x key block x head group). A device that computes a tile of a row it does
// not own receives the row's queries and returns its partial output. For a column that it does not
// own, it receives keys and values.
struct AttentionGrid {
  std::int32_t head_groups = 1;
  IdVector<BlockId, GridBlock> blocks;
  IdVector<TileId, GridTile> tiles;
  std::int64_t row_bytes_per_token = 0;     // Q in and O out, one head group
  std::int64_t column_bytes_per_token = 0;  // K and V in, one head group
};

// The bounds that a partition must keep.
enum class GridBounds : std::uint8_t {
  // Bounds a device's work by the mean of all devices, where tiles are small enough, and a node's
  // work only while nodes are chosen. No device owns more than token_cap.
  kDevices,
  // DCP's bounds (Jiang et al., SOSP 2025, §4.2), whatever the tiles: a node's work is bounded by
  // the mean of nodes, a device's by the mean of its own node, and so are the tokens of both. See
  // nested_bounds.
  kNested,
};

struct GridSpec {
  std::int32_t nodes = 1;
  std::int32_t devices_per_node = 1;
  std::int32_t nics_per_node = 0;  // each serves an equal share of the devices; 0: one per device
  GridBounds bounds = GridBounds::kDevices;
  double eps_compute = 0.1;       // a device's work <= (1 + eps) · mean
  double eps_node = 0.04;         // a node's work <= (1 + eps) · mean
  double data_tolerance = 0;      // nested: blocks that a node or a device may own beyond what
                                  // longest-first packing needs
  std::int64_t token_cap = 0;     // tokens a device may own; 0: the need of the longest-first
                                  // greedy, plus one block
  std::int64_t node_weight = 3;   // weight of a byte across nodes; every byte also weighs 1
  std::int64_t inter_weight = 1;  // weight of a byte across nodes in a device's traffic: how much
                                  // longer it takes than one inside
  double traffic_weight = 0.1;    // weight of the hottest devices in the objective; 0: total bytes
                                  // only
  double effort = 1;              // annealing steps, in multiples of the fast setting
  std::uint64_t seed = 1;
};

struct GridPartition {
  IdVector<BlockId, Rank> owner;  // device of every block, all valid
  IdVector<TileId, Rank> device;  // of every tile, all valid
};

// The cost of a partition, recomputed from the assignment alone.
struct GridQuality {
  std::int64_t inter_bytes = 0;              // across nodes, each unit once per node (relayed)
  std::int64_t total_bytes = 0;              // each unit once per device
  std::int64_t max_device_bytes = 0;         // largest max(sent, received), relays included; bytes
                                             // across nodes count GridSpec::inter_weight times
  std::int64_t max_device_direct_bytes = 0;  // the same without relays
  std::int64_t max_port_bytes = 0;  // largest max(sent, received) of a device inside nodes,
                                    // relays included
  std::int64_t max_nic_bytes = 0;   // the same of a NIC
  double compute_overload = 0;      // max / mean - 1
  double token_overload = 0;
};

// Partitions a grid. Deterministic by seed and effort. With kDevices it throws InvalidArgument when
// a single block is heavier than token_cap. Multilevel: adjacent blocks of a sequence merge until a
// coarse tile is a fair share of a device's work. Nodes are chosen first, then devices inside
// nodes, then all together, by simulated annealing with exact deltas. The result is refined on the
// way back down with a little annealing and greedy refinement at every level.
[[nodiscard]] GridPartition partition_grid(const AttentionGrid& grid, const GridSpec& spec);

[[nodiscard]] GridQuality evaluate(const AttentionGrid& grid, const GridSpec& spec,
                                   const GridPartition& partition);

// ------------------------------------------------------------------------- DCP's constraints

// Returns the most work that one of `parts` may have of these weights: (1 + eps) · mean, or the
// need of longest-first packing if that is more, for example when a single weight is heavier.
[[nodiscard]] std::int64_t work_bound(std::vector<std::int64_t> weights, std::int32_t parts,
                                      double eps);

// The bounds of GridBounds::kNested that do not depend on the partition. Two others are of a
// device's own node, as finally placed: its work is at most work_bound of the node's tiles with
// eps_compute, and its tokens may be what packing the node's blocks longest first needs.
struct NestedBounds {
  std::int64_t node_work = 0;
  std::int64_t node_tokens = 0;    // longest-first over nodes + data_tolerance · the largest block
  std::int64_t device_tokens = 0;  // the same over all devices
};
[[nodiscard]] NestedBounds nested_bounds(const AttentionGrid& grid, const GridSpec& spec);

// Moves and swaps blocks and tiles of a partition, cheapest bytes first, until it keeps the nested
// bounds, which must be those of the grid and the spec. If that ends without keeping them,
// longest-first packing of the parts that are out of bounds does, so any partition becomes one that
// keeps them. Nothing moves if the partition keeps every eps.
void hold_nested_bounds(const AttentionGrid& grid, const GridSpec& spec, const NestedBounds& bounds,
                        GridPartition& partition);

// ------------------------------------------------------------------------------- relays

// Data that one device has and others need, or (towards_owner) partial results that others have and
// one device gathers.
struct MovingUnit {
  std::int64_t bytes = 0;
  Rank owner{0};
  bool towards_owner = false;
  std::vector<Rank> devices;  // ascending, without the owner
};

// Chooses, for every device of every unit, the device it receives the unit from (or sends it to):
// the owner, or a device of its own node that crosses the node boundary once for all of them.
// Greedy, heaviest units first, in three passes. Each pass chooses the device that keeps the
// busiest of (sent, received) lowest, where a byte across nodes counts `inter_weight` times.
// O(passes · devices of all units).
[[nodiscard]] std::vector<std::vector<Rank>> choose_relays(std::span<const MovingUnit> units,
                                                           std::int32_t num_devices,
                                                           std::int32_t devices_per_node,
                                                           std::int64_t inter_weight = 1);

// Returns the largest load when sizes go longest first to the least loaded of `parts`: a data
// balance that is always reachable.
[[nodiscard]] std::int64_t longest_first_max(std::vector<std::int64_t> sizes, std::int32_t parts);

}  // namespace contextile
