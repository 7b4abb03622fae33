#pragma once

#include "contextile/strategy.h"

namespace contextile {

[[nodiscard]] const Strategy& auto_strategy();

}  // namespace contextile
