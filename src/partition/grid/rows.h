// Query rows placed whole. A row, a block of queries with all keys they attend, runs on one device,
// or by its heads on all devices of a node; who runs it need not own it. Kernels take longer for a
// row in two runs than in one, which grids of tiles (contextile/extend/partition.h) do not see; where
// tiles must be cut, grids are better.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/partition.h"

namespace contextile {

struct WholeRow {
  double us = 0;  // of its run
  std::int64_t tokens = 0;
  SequenceId sequence{0};          // rows of a sequence stand together, in token order
  std::vector<std::int32_t> keys;  // rows whose keys it attends, ascending, itself not among them
};

struct RowSpec {
  std::int32_t nodes = 1;
  std::int32_t devices_per_node = 1;
  std::int32_t nics_per_node = 1;
  bool spread_heads = false;   // rows may run on a node
  std::int64_t token_cap = 0;  // that a device may own
  // What a token costs, in µs of the mean device: each further device, and each further node, that
  // has its keys; its queries where its row runs on a node; its ownership above the cap.
  double device_us = 0;
  double node_us = 0;
  double spread_us = 0;
  double overfull_us = 0;
  double port_us = 0;               // of a device's port, for the keys of a token
  double nic_us = 0;                // of a node's NICs
  std::vector<double> handicap_us;  // of every device, as if it had as much to do; empty: none
  std::int64_t steps = 0;           // of annealing
  double heat = 1;                  // of the first steps, to that of a start from nothing
  std::uint64_t seed = 1;
};

// Where a row runs: a device, or behind those a node: num_devices + n.
using RowPlace = std::int32_t;

// Simulated annealing from whole sequences on nodes, longest first, or from `start`. The work above
// the mean that a device has is fined, bytes count by what they cost on average. Deterministic by
// seed, on any machine. O(steps · keys of a row).
[[nodiscard]] std::vector<RowPlace> place_rows(std::span<const WholeRow> rows, const RowSpec& spec,
                                               std::span<const RowPlace> start = {});

// The owner of every row: who runs it; of a row on a node the device with least tokens; others,
// first of the same node, where that would own more than the cap and there is room.
[[nodiscard]] std::vector<Rank> own_rows(std::span<const WholeRow> rows, const RowSpec& spec,
                                         std::span<const RowPlace> places);

}  // namespace contextile
