#pragma once

#include "contextile/extend/strategy.h"

namespace contextile {

[[nodiscard]] const Strategy& auto_strategy();

}  // namespace contextile
