// A schedule of micro-batches as parts of a training step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contextile/advanced/training.h"
#include "contextile/schedule.h"

namespace contextile {

// Returns one part per round, for all ranks together: a rank's share is the sum over its
// micro-batches, and it holds the activations of one of them at a time. The time of several masks
// is their mean, weighted by layers; `tp` and `collective` as in batch_part_of.
[[nodiscard]] std::vector<BatchPart> round_parts(const PlannedSchedule& schedule, std::int32_t tp,
                                                 const CollectiveTraffic& collective);

// Returns a round as one of `dp` replicas sees it: its own tokens and FLOPs, and the times of all
// ranks, because a barrier ends the round. Replica d has ranks d·cp … d·cp + cp - 1.
[[nodiscard]] BatchPart replica_part(const BatchPart& round, std::int32_t replica, std::int32_t dp);

// Returns why pipeline stages cannot run the schedule: a rank has several micro-batches in a round.
[[nodiscard]] std::optional<std::string> pipeline_reason(const PlannedSchedule& schedule);

}  // namespace contextile
