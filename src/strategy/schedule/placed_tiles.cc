#include "strategy/schedule/placed_tiles.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <span>
#include <vector>

namespace contextile {
namespace {

// The devices, other than the owner, where tiles use a unit as that of their row or of their
// column. Those of unit u are devices[first[u], first[u + 1]), ascending.
struct UnitDevices {
  std::vector<std::size_t> first;
  std::vector<Rank> devices;
};
UnitDevices devices_of_units(const ScheduleProblem& problem, bool of_columns) {
  const auto groups = static_cast<std::size_t>(problem.head_groups);
  const std::size_t units = problem.owners.size() * groups;
  const auto for_each_away = [&](const auto& visit) {
    for (const PlacedTile& tile : problem.tiles) {
      const BlockId block = of_columns ? tile.kv_block : tile.q_block;
      if (problem.owners[block.index()] == tile.device) continue;
      visit(block.index() * groups + tile.group.index(), tile.device);
    }
  };
  std::vector<std::size_t> next(units + 1, 0);
  for_each_away([&](std::size_t unit, Rank) { ++next[unit + 1]; });
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<Rank> all(next.back());
  std::vector<std::size_t> first = next;
  for_each_away([&](std::size_t unit, Rank device) {
    // Tiles of a row on one device are adjacent, so this removes most duplicates.
    std::size_t& end = next[unit];
    if (end == first[unit] || all[end - 1] != device) all[end++] = device;
  });
  UnitDevices found;
  found.first.push_back(0);
  for (std::size_t u = 0; u < units; ++u) {
    const auto devices = std::span(all).subspan(first[u], next[u] - first[u]);
    std::ranges::sort(devices);
    std::ranges::unique_copy(devices, std::back_inserter(found.devices));
    found.first.push_back(found.devices.size());
  }
  return found;
}

void append_routes(const ScheduleProblem& problem, Kind kind, const UnitDevices& away,
                   std::vector<UnitRoute>& routes) {
  const auto groups = static_cast<std::size_t>(problem.head_groups);
  for (std::size_t u = 0; u + 1 < away.first.size(); ++u) {
    const BlockId block{static_cast<std::int32_t>(u / groups)};
    const GroupId group{static_cast<std::int32_t>(u % groups)};
    for (std::size_t i = away.first[u]; i < away.first[u + 1]; ++i) {
      routes.push_back({kind, block, group, away.devices[i], problem.owners[block.index()]});
    }
  }
}

}  // namespace

ScheduleProblem schedule_problem(const Workload& workload, const Cluster& cluster,
                                 const PlacedBlocks& placed, Direction direction) {
  ScheduleProblem problem = {.blocks = &placed.blocks,
                             .owners = placed.owners,
                             .head_groups = placed.head_groups,
                             .num_devices = cluster.num_devices(),
                             .devices_per_node = cluster.devices_per_node,
                             .direction = direction,
                             .shape = workload.shape,
                             .tiles = placed.tiles,
                             .routes = {},
                             .block_head_groups = placed.block_head_groups};
  const bool has_inputs =
      direction == Direction::kBackward && placed.forward_inputs == ForwardInputs::kRetained;
  const UnitDevices of_rows = devices_of_units(problem, false);
  const UnitDevices of_columns = devices_of_units(problem, true);
  for (int k = 0; k < kNumKinds; ++k) {
    const auto kind = static_cast<Kind>(k);
    if (!occurs_in(kind, direction)) continue;
    if (has_inputs && (kind == Kind::kQ || kind == Kind::kKv)) continue;
    append_routes(problem, kind, is_of_kv(kind) ? of_columns : of_rows, problem.routes);
  }
  return problem;
}

}  // namespace contextile
