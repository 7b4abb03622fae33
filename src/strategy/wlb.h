// WLB-LLM's sharding of one micro-batch.
#pragma once

#include "contextile/extend/strategy.h"

namespace contextile {

[[nodiscard]] const Strategy& wlb_strategy();

}  // namespace contextile
