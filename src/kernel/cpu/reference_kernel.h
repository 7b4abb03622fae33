// The kernel everything else is checked against.
#pragma once

#include "contextile/extend/kernel.h"

namespace contextile {

// Plain loops in fp64 inside a tile: online softmax over chunks of keys, then one merge into the
// fp32 slot. Threads over query heads (forward) or KV heads (backward), so results do not depend on
// their number. Stateless.
[[nodiscard]] const AttentionKernel& reference_kernel();

}  // namespace contextile
