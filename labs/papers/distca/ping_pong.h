// DistCA's step of two halves, one of which computes while the other's data moves, for Figs. 11 and
// 12.
#pragma once

#include <array>
#include <map>
#include <string>

#include "contextile/advanced/step_planner.h"

namespace contextile {

// Both halves of a ping-pong step.
struct NanoBatchPair {
  TrainingStep step;              // without micro-batches
  std::array<BatchPart, 2> part;  // transfers simulated apart
};

// The documents in two halves of about equal tokens, each planned on all devices by distca with
// these options in addition to those of ping-pong. Throws InvalidArgument if there are fewer than
// two documents.
[[nodiscard]] NanoBatchPair plan_halves(const TrainingJob& job, const BatchLengths& documents,
                                        const std::map<std::string, std::string>& options);
[[nodiscard]] double ping_pong_us(const NanoBatchPair& pair);

}  // namespace contextile
