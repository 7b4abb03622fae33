// The kernel that all others are checked against.
#pragma once

#include "contextile/extend/kernel.h"

namespace contextile {

// Returns the reference kernel: plain loops in fp64 inside a tile, with online softmax over chunks
// of keys and then one merge into the fp32 slot. Threads split query heads (forward) or KV heads
// (backward), so results do not depend on their number. Stateless.
[[nodiscard]] const AttentionKernel& reference_kernel();

}  // namespace contextile
