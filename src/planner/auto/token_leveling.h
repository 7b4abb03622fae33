// Ownership of tokens spread evenly over devices: blocks of devices that own too many are cut, and
// the pieces get other owners.
#pragma once

#include <cstdint>
#include <optional>

#include "contextile/cluster.h"
#include "contextile/workload.h"
#include "planner/auto/placement.h"

namespace contextile {

// Returns the placement with other owners, such that no device owns more than `cap` tokens, which
// is at least the mean of all devices; nothing if that holds already. Tiles stay on their devices.
// Pieces go to devices of the same node if those have room, from the blocks that the fewest devices
// use. O(tiles + blocks · devices).
[[nodiscard]] std::optional<Placement> level_tokens(const Workload& workload,
                                                    const Cluster& cluster,
                                                    const Placement& placement, std::int64_t cap,
                                                    bool backward);

}  // namespace contextile
