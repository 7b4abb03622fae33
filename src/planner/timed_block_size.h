// Strategies whose block size is chosen by predicted time.
#pragma once

#include <span>

#include "contextile/strategy.h"

namespace contextile {

// The published strategies in their order; `dcp` without a block size and `fcp` with block=auto try
// 512 … 4096 (fcp: 1024 … 8192) and take the size whose plan is predicted fastest, ties to the
// larger.
[[nodiscard]] std::span<const Strategy* const> timed_strategies();

}  // namespace contextile
