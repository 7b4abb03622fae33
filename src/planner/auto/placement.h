// Placements made for predicted time: the grid partitioner, given the cost model's times and the
// cost of a byte on this cluster, and stages that hide transfers.
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

// The units of a placement: tiles on a grid, or rows whole (partition/rows.h), on devices alone or
// also spread by their heads over the devices of a node.
enum class PlacedUnit : std::uint8_t { kTiles, kRows, kSpreadRows };

// How one placement is made.
struct PlacementChoice {
  PlacedUnit unit = PlacedUnit::kTiles;
  std::int64_t block_size = 1024;
  std::int32_t head_groups = 1;  // for rows spread over a node: its devices
  double eps = 0.05;             // tiles only: compute above the mean that a device may have
  double fill = 1;               // rows only: as in RowSpec
  double heat = 1;               // rows only: as in RowSpec
  double effort = 1;             // of the partitioner
  std::uint64_t seed = 1;
};

// One blocking of the workload with the costs of its tiles; shared by placements on it.
// `block_size` is that of the choice, whose blocks may have been cut further.
struct PricedTiles {
  TileGrid tiles;
  bool whole_rows = false;  // a tile costs its share of its row in one run
  std::int64_t block_size = 0;
  // Times of all heads together, µs: [mask][tile].
  std::vector<std::vector<double>> forward_us;
  std::vector<std::vector<double>> backward_us;
  std::vector<std::int64_t> work_ns;  // of tiles.all_tiles: forward + backward, layers counted
};
[[nodiscard]] PricedTiles price_tiles(const Workload& workload, const Cluster& cluster,
                                      TileGrid tiles, std::int64_t block_size, bool backward,
                                      bool whole_rows = false);

// Time of all layers' work spread evenly over that many devices, µs.
[[nodiscard]] double mean_work_us(const PricedTiles& priced, std::int64_t devices);

struct Placement {
  std::shared_ptr<const PricedTiles> priced;  // for the unit of the choice
  PlacementChoice choice;
  GridPartition partition;
  std::vector<RowPlace> places;                 // of rows, if they are placed whole
  std::vector<std::int32_t> block_head_groups;  // as in a round
  double estimate_us = 0;  // the most of compute, device ports and NICs, and part of the other two
  // The same with even tokens, if tokens have a price and these are not even (token_leveling.h).
  // That one is arranged; this one is where further placements start.
  std::shared_ptr<const Placement> leveled;

  [[nodiscard]] const Placement& arranged() const { return leveled ? *leveled : *this; }
};
// Rows placed earlier, to start from, and the extra time to assume for every device, µs.
struct RowStart {
  std::vector<RowPlace> places;
  std::vector<double> handicap_us;
};

// How many tokens devices may own once leveled.
struct LevelRule {
  std::int64_t cap = 0;                    // 0: whatever the alignment needs
  const PlanOptions* alignment = nullptr;  // if these ask for multiples or equally many

  [[nodiscard]] bool applies() const { return cap > 0 || alignment != nullptr; }
};

// Rules that every placement of a search follows.
struct PlacingRules {
  Dtype wire = Dtype::kF32;  // of partial results
  bool backward = true;
  bool retain = false;         // forward keeps received q and kv
  std::int64_t token_cap = 0;  // that a device may own; 0: the need of its blocks, and one block
  double token_us = 0;         // price of a token above the mean on the fullest device
  LevelRule level = {};
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
                                            const Placement& placed, const StrategyRequest& request,
                                            const SchedulePair& schedules, bool retain);

}  // namespace contextile
