// FCP: fixed-size blocks on any device, congestion-free rounds, a pipeline of blocks.
#pragma once

#include "contextile/extend/strategy.h"

namespace contextile {

[[nodiscard]] const Strategy& fcp_strategy();

}  // namespace contextile
