// Core attention disaggregation: attention tasks migrated to where there is room.
#pragma once

#include "contextile/extend/strategy.h"

namespace contextile {

[[nodiscard]] const Strategy& distca_strategy();

}  // namespace contextile
