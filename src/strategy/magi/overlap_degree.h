// The number of stages in which remote keys arrive: MagiAttention's dynamic overlap degree.
#pragma once

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/extend/strategies.h"
#include "contextile/workload.h"

namespace contextile {

// Most stages that are tried.
inline constexpr std::int32_t kMaxOverlapDegree = 8;

// Returns the estimated time of the slowest rank's forward, in µs, every mask weighted by its
// layers. A stage's keys travel one after another into a rank's port from the time that the stage
// of their launch begins, and its tiles begin when they are there and the stage before is done. A
// rank's runs of query rows take the times of the cluster's attention profile; senders and other
// ranks cost nothing. O(tiles + transfers).
[[nodiscard]] double overlapped_us(const ArrangedRound& round, const Workload& workload,
                                   const Cluster& cluster);

}  // namespace contextile
