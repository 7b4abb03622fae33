// FCP: fixed-size blocks anywhere, congestion-free rounds, a pipeline of blocks.
#pragma once

#include "contextile/extend/strategy.h"

namespace contextile {

[[nodiscard]] const Strategy& fcp_strategy();

}  // namespace contextile
