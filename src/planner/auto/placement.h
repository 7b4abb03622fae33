// Placements made for predicted time: the grid partitioner fed with the cost model's times and with
// what a byte costs on this cluster, and stages that hide transfers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/extend/strategy.h"
#include "contextile/simulate.h"
#include "contextile/workload.h"
#include "partition/grid/rows.h"
#include "strategy/grid_placement.h"
#include "strategy/schedule/in_order.h"
#include "strategy/schedule/overlap.h"
#include "strategy/schedule/timeline.h"

namespace contextile {

// What a placement places: tiles on a grid, or rows whole (partition/rows.h), on devices alone or
// also spread by their heads over the devices of a node.
enum class PlacedUnit : std::uint8_t { kTiles, kRows, kSpreadRows };

// How one placement is made.
struct PlacementChoice {
  PlacedUnit unit = PlacedUnit::kTiles;
  std::int64_t block_size = 1024;
  std::int32_t head_groups = 1;  // of rows spread over a node: its devices
  double eps = 0.05;             // compute above the mean that a device may have; of tiles alone
  double effort = 1;             // of the partitioner
  std::uint64_t seed = 1;
};

// One blocking of the workload with what its tiles cost; shared by placements on it.
struct PricedTiles {
  TileGrid tiles;
  bool whole_rows = false;  // a tile is its share of its row in one run
  std::int64_t block_size = 0;
  // Times of all heads together, µs: [mask][tile].
  std::vector<std::vector<double>> forward_us;
  std::vector<std::vector<double>> backward_us;
  std::vector<std::int64_t> work_ns;  // of tiles.all_tiles: forward + backward, layers counted
};
[[nodiscard]] PricedTiles price_tiles(const Workload& workload, const Cluster& cluster,
                                      std::int64_t block_size, bool backward,
                                      bool whole_rows = false);

// All layers' work spread evenly over so many devices, µs.
[[nodiscard]] double mean_work_us(const PricedTiles& priced, std::int64_t devices);

struct Placement {
  std::shared_ptr<const PricedTiles> priced;  // as the choice's unit has it
  PlacementChoice choice;
  GridPartition partition;
  std::vector<RowPlace> places;                 // of rows, where they are placed whole
  std::vector<std::int32_t> block_head_groups;  // as in a round
  double estimate_us = 0;  // what binds: compute, device ports or NICs, and part of the others
};
// Steps to go on from there, as a choice's effort.
inline constexpr double kWarmEffort = 0.2;
// Rows placed before, to go on from, and what every device is to be taken to have besides, µs.
struct RowStart {
  std::vector<RowPlace> places;
  std::vector<double> handicap_us;
};

// What every placement of a search keeps to.
struct PlacingRules {
  Dtype wire = Dtype::kF32;  // of partial results
  bool backward = true;
  bool retain = false;         // forward keeps received q and kv
  std::int64_t token_cap = 0;  // that a device may own; 0: as blocks need, and one more
};
[[nodiscard]] Placement place(const Workload& workload, const Cluster& cluster,
                              std::shared_ptr<const PricedTiles> priced,
                              const PlacementChoice& choice, const PlacingRules& rules,
                              const RowStart* warm = nullptr);

using Schedule = std::variant<OverlapOptions, TimelineOptions, InOrderOptions>;
struct SchedulePair {
  Schedule forward;
  Schedule backward;

  friend bool operator==(const SchedulePair&, const SchedulePair&) = default;
};

// The placement under the schedules; with `retain`, forward keeps received q and
// kv for backward.
[[nodiscard]] Arrangement arrange_placement(const Workload& workload, const Cluster& cluster,
                                            const Placement& placement,
                                            const StrategyRequest& request,
                                            const SchedulePair& schedules, bool retain);

}  // namespace contextile
