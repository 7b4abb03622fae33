// MagiAttention's dispatch and group collectives.
#pragma once

#include "contextile/extend/strategy.h"

namespace contextile {

[[nodiscard]] const Strategy& magi_strategy();

}  // namespace contextile
