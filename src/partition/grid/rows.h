// Placement of whole query rows. A row, which is a block of queries with all keys they attend, runs
// on one device, or by its heads on all devices of a node. The device that runs it need not own it.
// Kernels take longer for a row in two runs than in one, which grids of tiles
// (contextile/extend/partition.h) do not model. Grids are better if tiles must be cut.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/partition.h"

namespace contextile {

struct WholeRow {
  double us = 0;  // time of its run
  std::int64_t tokens = 0;
  SequenceId sequence{0};          // rows of a sequence are adjacent, in token order
  std::vector<std::int32_t> keys;  // other rows whose keys it attends, ascending
};

struct RowSpec {
  std::int32_t nodes = 1;
  std::int32_t devices_per_node = 1;
  std::int32_t nics_per_node = 1;
  bool spread_heads = false;   // rows may run on a node
  std::int64_t token_cap = 0;  // most tokens that a device may own
  // Costs of a token, in µs of the mean device: for each further device, and each further node,
  // that has its keys; for its queries if its row runs on a node; for its ownership above the cap.
  double device_us = 0;
  double node_us = 0;
  double spread_us = 0;
  double overfull_us = 0;
  double receiver_us = 0;           // the same for a device that receives any keys
  double port_us = 0;               // of a device's port, for the keys of a token
  double nic_us = 0;                // of a node's NICs
  std::vector<double> handicap_us;  // work that every device already has; empty: none
  double fill = 1;                  // work that a device may have without a penalty, in means
  std::int64_t steps = 0;           // annealing steps
  double heat = 1;                  // of the first steps, relative to that of a start from nothing
  std::uint64_t seed = 1;
};

// The place where a row runs: device d is place d, node n is place num_devices + n.
using RowPlace = std::int32_t;

// Places rows by simulated annealing from whole sequences on nodes, longest first, or from `start`.
// A device's work above `fill` means is penalized, and bytes count with their average cost.
// Deterministic by seed, on any machine. O(steps · keys of a row).
[[nodiscard]] std::vector<RowPlace> place_rows(std::span<const WholeRow> rows, const RowSpec& spec,
                                               std::span<const RowPlace> start = {});

// Returns the owner of every row: the device that runs it, or for a row on a node its device with
// the fewest tokens. If that would own more than the cap, another device with room owns the row,
// preferably of the same node.
[[nodiscard]] std::vector<Rank> own_rows(std::span<const WholeRow> rows, const RowSpec& spec,
                                         std::span<const RowPlace> places);

}  // namespace contextile
