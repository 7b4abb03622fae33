// MagiAttention's dispatch and group collectives.
#pragma once

#include "contextile/strategy.h"

namespace contextile {

[[nodiscard]] const Strategy& magi_strategy();

}  // namespace contextile
