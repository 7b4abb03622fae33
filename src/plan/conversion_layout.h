// Transfers that are converted on their way. Their places are in `conversion_layout` (plan.h).
#pragma once

#include <algorithm>
#include <vector>

#include "contextile/plan.h"

namespace contextile {

// Accumulators are fp32; a result that travels narrower is converted in a buffer of its own.
[[nodiscard]] inline bool is_converted(const TransferEnd& end) {
  return is_result(end.kind) && end.wire != Dtype::kF32;
}

// Returns true if the program needs a conversion buffer at all. O(transfers), without allocating.
[[nodiscard]] inline bool converts_anything(const Program& program) {
  return std::any_of(
      program.instructions.begin(), program.instructions.end(), [](const Instruction& instruction) {
        const auto* launch = std::get_if<LaunchOp>(&instruction);
        return launch != nullptr &&
               (std::any_of(launch->sends.begin(), launch->sends.end(), is_converted) ||
                std::any_of(launch->recvs.begin(), launch->recvs.end(), is_converted));
      });
}

}  // namespace contextile
