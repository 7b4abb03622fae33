// Ownership of tokens spread evenly over devices: blocks of devices that own too many are cut, and
// the pieces get other owners.
#pragma once

#include <optional>

#include "contextile/cluster.h"
#include "contextile/workload.h"
#include "planner/auto/placement.h"

namespace contextile {

// Returns the placement with other owners, such that every device keeps to the rule, whose cap is
// at least the mean of all devices; nothing if that holds already. Tiles stay on their devices.
// Pieces go to devices of the same node if those have room, from the blocks that the fewest devices
// use. O(tiles + blocks · devices).
[[nodiscard]] std::optional<Placement> level_tokens(const Workload& workload,
                                                    const Cluster& cluster,
                                                    const Placement& placement,
                                                    const LevelRule& rule, bool backward);

}  // namespace contextile
