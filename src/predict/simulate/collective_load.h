// A collective that uses the links of a plan's devices while the plan runs.
#pragma once

#include <cstdint>

#include "contextile/advanced/collective_traffic.h"
#include "contextile/cluster.h"

namespace contextile {

// A collective that starts at time 0 and would take `alone_us` if nothing else used its links.
struct CollectiveLoad {
  CollectiveTraffic traffic;
  double alone_us = 0;

  [[nodiscard]] bool any() const { return traffic.any() && alone_us > 0; }
};

// Calls `use` with both ends and the rate of every flow of the collective: around each node, and
// from every device to its neighbor in the next node.
template <typename Use>
void for_each_collective_flow(const Cluster& cluster, const CollectiveLoad& collective,
                              const Use& use) {
  if (!collective.any()) return;
  const std::int32_t per_node = cluster.devices_per_node;
  const CollectiveTraffic& traffic = collective.traffic;
  for (std::int32_t d = 0; d < cluster.num_devices(); ++d) {
    const std::int32_t in_node = d % per_node;
    if (traffic.device_gbytes_per_s > 0 && per_node > 1) {
      use(Rank{d}, Rank{d - in_node + (in_node + 1) % per_node}, traffic.device_gbytes_per_s);
    }
    if (traffic.node_gbytes_per_s > 0 && cluster.nodes > 1) {
      use(Rank{d}, Rank{(d + per_node) % cluster.num_devices()},
          traffic.node_gbytes_per_s / per_node);
    }
  }
}

}  // namespace contextile
