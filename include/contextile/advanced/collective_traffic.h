// The rates at which a collective of a training step keeps links busy.
#pragma once

#include <compare>

namespace contextile {

// A collective over the devices of a plan or over more, GB/s in each direction, while nothing else
// runs.
struct CollectiveTraffic {
  double device_gbytes_per_s = 0;  // of every device, to the next one of its node
  double node_gbytes_per_s = 0;    // of all devices of a node together, to the next node

  [[nodiscard]] bool any() const { return device_gbytes_per_s > 0 || node_gbytes_per_s > 0; }
  friend auto operator<=>(const CollectiveTraffic&, const CollectiveTraffic&) = default;
};

}  // namespace contextile
