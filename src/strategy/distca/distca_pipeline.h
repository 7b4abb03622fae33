// DistCA's pipeline: ticks in which all stages are in the same phase, so that their attention can
// be balanced over all devices.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/arrangement.h"
#include "contextile/workload.h"

namespace contextile {

inline constexpr std::int32_t kIdleStage = -1;

// One tick: every stage runs the forward, or the backward, of one micro-batch. A stage that is idle
// still serves attention tasks of the others.
struct SamePhaseTick {
  Direction phase = Direction::kForward;
  std::vector<std::int32_t> micro_batches;  // of every stage; kIdleStage: none

  friend bool operator==(const SamePhaseTick&, const SamePhaseTick&) = default;
};

// Returns the ticks in the order F_0 … F_{p-2}, then (F_{p-1+i}, B_i) for i < m, then B_m …
// B_{m+p-2}: 2(m + p - 1) ticks. Forward tick t runs micro-batch t - r on stage r, backward tick t
// runs t - (p - 1 - r). Source: DistCA §4.1 (pipeline parallelism). Throws InvalidArgument unless
// both numbers are positive. O(ticks · stages).
[[nodiscard]] std::vector<SamePhaseTick> same_phase_ticks(std::int32_t num_stages,
                                                          std::int32_t num_micro_batches);

// Returns the largest number of micro-batches whose forward a stage has run and whose backward it
// has not, counted from the ticks. Under the order above this is min(m, 2(p - 1 - r) + 1), nearly
// twice what 1F1B keeps on stage 0.
[[nodiscard]] std::int32_t peak_activations(std::span<const SamePhaseTick> ticks,
                                            std::int32_t stage);

}  // namespace contextile
