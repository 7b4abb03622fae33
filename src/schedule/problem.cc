#include "schedule/problem.h"

#include <algorithm>
#include <cstddef>

namespace contextile {
namespace {

// Appends the routes of the units of one kind that tiles read or add to on other devices than their
// owners.
void append_routes(const ScheduleProblem& problem, Kind kind, std::vector<UnitRoute>& routes) {
  const auto groups = static_cast<std::size_t>(problem.head_groups);
  std::vector<std::vector<Rank>> devices_of_unit(problem.owners.size() * groups);
  for (const PlacedTile& tile : problem.tiles) {
    const BlockId block = is_of_kv(kind) ? tile.kv_block : tile.q_block;
    if (problem.owners[block.index()] == tile.device) continue;
    devices_of_unit[block.index() * groups + tile.group.index()].push_back(tile.device);
  }
  for (std::size_t u = 0; u < devices_of_unit.size(); ++u) {
    std::vector<Rank>& devices = devices_of_unit[u];
    std::ranges::sort(devices);
    devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
    const BlockId block{static_cast<std::int32_t>(u / groups)};
    const GroupId group{static_cast<std::int32_t>(u % groups)};
    for (const Rank device : devices) {
      routes.push_back({kind, block, group, device, problem.owners[block.index()]});
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
  for (int k = 0; k < kNumKinds; ++k) {
    const auto kind = static_cast<Kind>(k);
    if (!occurs_in(kind, direction)) continue;
    if (has_inputs && (kind == Kind::kQ || kind == Kind::kKv)) continue;
    append_routes(problem, kind, problem.routes);
  }
  return problem;
}

}  // namespace contextile
