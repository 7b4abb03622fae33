// Placements made for predicted time: the grid partitioner fed with the cost model's times and with
// what a byte costs on this cluster, and stages that hide transfers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "contextile/arrangement.h"
#include "contextile/cluster.h"
#include "contextile/simulate.h"
#include "contextile/strategy.h"
#include "contextile/workload.h"
#include "schedule/overlap.h"
#include "schedule/timeline.h"
#include "strategy/grid_placement.h"

namespace contextile {

// How one placement is made.
struct PlacementChoice {
  std::int64_t block_size = 1024;
  std::int32_t head_groups = 1;
  double eps = 0.05;  // compute above the mean that a device may have
  double effort = 1;  // of the partitioner
  std::uint64_t seed = 1;
};

// One blocking of the workload with what its tiles cost; shared by placements on it.
struct PricedTiles {
  TileGrid tiles;
  std::int64_t block_size = 0;
  // Times of all heads together, µs: [mask][tile].
  std::vector<std::vector<double>> forward_us;
  std::vector<std::vector<double>> backward_us;
  std::vector<std::int64_t> work_ns;  // of tiles.all_tiles: forward + backward, layers counted
};
[[nodiscard]] PricedTiles price_tiles(const Workload& workload, const Cluster& cluster,
                                      std::int64_t block_size, bool backward);

struct Placement {
  std::shared_ptr<const PricedTiles> priced;
  PlacementChoice choice;
  GridPartition partition;
  double estimate_us = 0;  // what binds: compute, device ports or NICs, and part of the others
};
[[nodiscard]] Placement place(const Workload& workload, const Cluster& cluster,
                              std::shared_ptr<const PricedTiles> priced,
                              const PlacementChoice& choice, const StrategyRequest& request,
                              bool retain);

using Schedule = std::variant<OverlapOptions, TimelineOptions>;
struct SchedulePair {
  Schedule forward;
  Schedule backward;
};

// The placement under the schedules; with `retain`, forward keeps received q and
// kv for backward.
[[nodiscard]] Arrangement arrange_placement(const Workload& workload, const Cluster& cluster,
                                            const Placement& placement,
                                            const StrategyRequest& request,
                                            const SchedulePair& schedules, bool retain);

}  // namespace contextile
