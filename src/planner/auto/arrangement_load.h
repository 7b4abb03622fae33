// The load that an arrangement puts on devices and links, computed without its plan.
#pragma once

#include <cstdint>

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/workload.h"

namespace contextile {

// Tokens of the device that owns most.
[[nodiscard]] std::int64_t most_tokens(const Arrangement& arrangement, const Cluster& cluster);

// Tiles of all rounds and masks, in the direction that has more.
[[nodiscard]] std::int64_t tiles_of_a_direction(const Arrangement& arrangement);

// A time that simulate() does not undercut for the arrangement's plan, both directions, µs: for
// every round and mask the busiest device's pairs at the kernel's best share of the peak, or the
// bytes of the busiest port or NIC at its rate. O(tiles + transfers · log).
[[nodiscard]] double least_time_us(const Workload& workload, const Cluster& cluster,
                                   const Arrangement& arrangement);

}  // namespace contextile
